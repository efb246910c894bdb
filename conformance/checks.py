"""A suite of our own scenarios around a foreign program: each check is a function that drives it and asserts.

The programs are other people's and run unmodified; what they must say is ours. All checks of a suite share one broker,
each with topics of its own; every call of a program is bounded in time. A failed assertion, a program that ended badly
or did not end is a failed check.
"""

import os
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from conformance import brokers
from conformance.lists import FAILED, PASSED, Outcome
from conformance.suite import Context, Suite

CALL_LIMIT_S = 60.0


class CheckFailed(AssertionError):
    """A program did not do or say what it should."""


class Bench:
    """What a check works with: a running broker, a folder of its own and a way to call programs."""

    def __init__(self, broker: brokers.Served, folder: Path, log: Path, patience: float, *, is_peer: bool) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap
        self.addresses = {*broker.bootstrap.split(",")}
        """HOST:PORT of every broker."""
        self.folder = folder
        self.patience = patience
        self.is_peer = is_peer
        self._log = log

    def call(
        self,
        command: Sequence[str],
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        limit_s: float = CALL_LIMIT_S,
        expect: int | None = 0,
    ) -> str:
        """Runs a program to its end and returns what it wrote to standard output; ``expect`` is its exit code."""
        done = self.call_fully(command, stdin, env, limit_s)
        if expect is not None and done.returncode != expect:
            raise CheckFailed(f"{_short(command)} ended with {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
        return done.stdout

    def call_fully(
        self,
        command: Sequence[str],
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        limit_s: float = CALL_LIMIT_S,
    ) -> "subprocess.CompletedProcess[str]":
        """The same, with everything that it said and no judgement."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        environment = {**os.environ, **(env or {})}
        try:
            raw = subprocess.run(
                command,
                input=given if given is not None else b"",
                capture_output=True,
                timeout=limit_s * self.patience,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            self.note(command, error.stdout or b"", error.stderr or b"")
            raise CheckFailed(f"{_short(command)} did not end in {limit_s * self.patience:g} s") from error
        self.note(command, raw.stdout, raw.stderr)
        out, err = (part.decode(errors="replace") for part in (raw.stdout, raw.stderr))
        return subprocess.CompletedProcess(raw.args, raw.returncode, out, err)

    def note(self, command: Sequence[str], *said: bytes) -> None:
        """Keeps what a program said with the suite's logs."""
        with open(self._log, "ab") as log:
            log.write(f"$ {' '.join(command)}\n".encode() + b"".join(said) + b"\n")


def _short(command: Sequence[str]) -> str:
    """A command as a person would name it."""
    words = [word for word in command if not word.startswith("-D")]
    main = next((i for i, word in enumerate(words) if word.startswith(("org.apache.", "kafka."))), 0)
    return " ".join(words[main : main + 8])


Check = Callable[[Bench], None]


class Checks(Suite):
    """Runs its checks one after another."""

    name = ""
    settings: Mapping[str, str] = {}

    def checks(self) -> Sequence[Check]:
        raise NotImplementedError

    def names(self) -> list[str]:
        return [check.__name__ for check in self.checks()]

    def run(self, context: Context) -> Iterator[Outcome]:
        with context.broker(self.settings) as broker:
            for check in self.checks():
                if check.__name__ in context.chosen:
                    broker.revive()
                    context.say(check.__name__)
                    yield self.one(context, broker, check)

    def one(self, context: Context, broker: brokers.Served, check: Check) -> Outcome:
        """Runs one check."""
        folder = context.scratch / check.__name__
        folder.mkdir()
        log = context.logs / f"{check.__name__}.log"
        log.unlink(missing_ok=True)
        began = time.monotonic()
        try:
            check(Bench(broker, folder, log, context.patience, is_peer=context.peer is not None))
        except (AssertionError, OSError, LookupError, ValueError) as error:
            with open(log, "a", encoding="utf-8") as kept:
                traceback.print_exc(file=kept)
            place = traceback.extract_tb(error.__traceback__)[-1].lineno
            reason = str(error) or f"the assertion in line {place} did not hold"
            return Outcome(check.__name__, FAILED, time.monotonic() - began, " ".join(reason.split())[:300])
        return Outcome(check.__name__, PASSED, time.monotonic() - began)
