"""A part of a load in a process of its own, so that what it does delays nobody else's sending.

``python -m MODULE`` reads one line of JSON (what to do) from its standard input and more lines if its work has them;
it writes lines of JSON, the last of which is its result. When it fails, its traceback is in the error that
:meth:`Child.result` raises: a load whose other half failed gives no figure. It dies with its block, never later.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from bench.raw import UnexpectedAnswer


def told() -> dict[str, Any]:
    """In the child: what it was told to do."""
    return json.loads(sys.stdin.readline())


class Child:
    """Begun when it is made; use it as a block."""

    def __init__(self, module: str, what: Mapping[str, Any]) -> None:
        self._module = module
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.tell(what)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def tell(self, what: object) -> None:
        """Sends a line; a child that has gone says why in :meth:`hear`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._failed()

    def hear(self) -> Any:
        """The next line; waits for it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._failed()
        return json.loads(line)

    def result(self, timeout_s: float = 60.0) -> Any:
        """The last line, when it has ended well."""
        try:
            out, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise UnexpectedAnswer(f"{self._module} did not end in {timeout_s:.0f} s: {self._said()}") from None
        if self._process.returncode != 0 or not out.strip():
            self._failed()
        return json.loads(out.strip().splitlines()[-1])

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:]

    def _failed(self) -> None:
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
