"""A part of a load in a process of its own, so that what it does delays nobody else's sending.

``python -m MODULE`` reads one line of JSON (what to do) from its standard input and more lines if its work has them;
it writes lines of JSON, the last of which is its result. When it fails, its traceback is in the error that
:meth:`Child.result` raises: a load whose other half failed gives no figure. It dies with its block, never later.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn, Self

from bench.raw import UnexpectedAnswer


def instructions() -> dict[str, Any]:
    """The first line of standard input: what this process shall do."""
    return json.loads(sys.stdin.readline())


class Child:
    """A process. Its constructor starts it; use it as a context manager."""

    def __init__(self, module: str, what: Mapping[str, Any], env: Mapping[str, str] | None = None) -> None:
        """``env`` is added to this process's environment."""
        self._module = module
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(env or {})},
        )
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._last: bytes | None = None  # it may be the result, heard before anybody asked for that
        self._ended = False
        self.tell(what)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, what: object) -> None:
        """Sends a line. Raises the child's own words if it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._failed()

    def hear(self, timeout_s: float = 600.0) -> Any:
        """Waits for the next line, and returns it."""
        deadline = time.monotonic() + timeout_s
        while not self._lines:
            self._receive(deadline)
            if self._ended and not self._lines:
                self._failed()
        return json.loads(self._lines.popleft())

    def heard(self) -> list[Any]:
        """The lines that have arrived. Raises if the child has failed."""
        if not self._ended:
            self._receive(None)
        if self._ended and self._process.wait() != 0:
            self._failed()
        lines = [json.loads(line) for line in self._lines]
        if self._lines:
            self._last = self._lines[-1]
        self._lines.clear()
        return lines

    def result(self, timeout_s: float = 60.0) -> Any:
        """The last line, when it has ended well."""
        deadline = time.monotonic() + timeout_s
        while not self._ended:
            self._receive(deadline)
        last = self._lines[-1] if self._lines else self._last
        if self._process.wait() != 0 or last is None:
            self._failed()
        return json.loads(last)

    def _receive(self, deadline: float | None) -> None:
        """Reads what has arrived. With a deadline (monotonic clock, s) it waits until then for the first bytes."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        wait_s = 0.0 if deadline is None else max(0.0, deadline - time.monotonic())
        ready = select.poll()  # unlike select it takes descriptors beyond 1023, which a load of many connections has
        ready.register(descriptor, select.POLLIN)
        if not ready.poll(1000 * wait_s):
            if deadline is not None:
                raise UnexpectedAnswer(f"{self._module} said nothing in time: {self._said()}")
            return
        data = os.read(descriptor, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines.extend(line for line in lines if line.strip())
        self._ended = not data

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:]

    def _failed(self) -> NoReturn:
        code = self._process.wait()
        raise UnexpectedAnswer(f"{self._module} ended with {code}: {self._said()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
