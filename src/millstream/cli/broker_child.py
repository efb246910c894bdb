"""A broker as a child process of a command. It serves until the command ends, and then stops in order.
A file in its data directory, such as ``take-over.log``, has its standard error. However the command ends, the kernel
sends the broker SIGTERM: it hands its leaderships over and tells the controller that it stops.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millstream.cli.exposition import read_exposition
from millstream.cli.failure import CommandFailed
from millstream.shard.process import bound_to_us

if TYPE_CHECKING:
    from collections.abc import Sequence

ASK_S: Final = 10.0
STOP_TIMEOUT_S: Final = 60.0
LOG: Final = "take-over.log"


class BrokerChild:
    """One broker. Lifecycle: serves when it is made; ``close`` stops it."""

    def __init__(self, arguments: Sequence[str], data: str, timeout_s: float, log_name: str = LOG) -> None:
        """``arguments`` are those of ``millstream start``. Raises CommandFailed: it did not come up in time."""
        self._log = Path(data) / log_name
        command = [sys.executable, "-m", "millstream.cli", "start", *arguments]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                bound_to_us(command, signal.SIGTERM),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._await(timeout_s)
            about = json.loads((Path(data) / "broker.json").read_text(encoding="utf-8"))
        except BaseException:
            self.close()
            raise
        self.http: str = about["http"]

    def _await(self, timeout_s: float) -> None:
        out = self._process.stdout
        assert out is not None
        readable, _, _ = select.select([out], [], [], timeout_s)
        if not readable:
            raise CommandFailed(f"the broker on the disk does not serve after {timeout_s:g} s; see {self._log}")
        if not out.readline():
            self._process.wait()
            raise CommandFailed(f"the broker on the disk did not start: {self._last_line()}; see {self._log}")

    def check(self) -> None:
        """Raise CommandFailed if it has ended."""
        if self._process.poll() is not None:
            raise CommandFailed(
                f"the broker on the disk has ended: {self._last_line()}; see {self._log}, and give the command again"
            )

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels. Raises CommandFailed."""
        self.check()
        try:
            return read_exposition(f"{self.http}/metrics", ASK_S).value(name)
        except OSError as error:
            self.check()
            raise CommandFailed(f"the broker on the disk does not answer: {error}; give the command again") from None

    def close(self) -> None:
        """Stop it in order; one that does not stop is killed, which loses nothing."""
        process = self._process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _last_line(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("error: ") if lines else "it wrote nothing"
