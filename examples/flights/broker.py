"""Start and stop the broker as anybody would: the command line, and the file that it writes when it serves."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

STOP_TIMEOUT_S = 30


class DemoFailed(Exception):
    """Why the demo cannot go on, in one sentence."""


@dataclass(frozen=True)
class RunningBroker:
    bootstrap: str
    http: str


@contextmanager
def running_broker(directory: Path, console: Console) -> Iterator[RunningBroker]:
    """A broker on free ports that is gone when the block ends."""
    log = directory.with_suffix(".log")
    command = [
        str(Path(sys.executable).with_name("millstream")),
        "start",
        "--data",
        str(directory),
        "--listen",
        "127.0.0.1:0",
        "--set",
        "log.retention.check.interval.ms=500",  # so that nobody waits five minutes for local copies to go
    ]
    console.print("[bold]1.[/bold] starting a broker:", " ".join(["millstream", *command[1:]]), soft_wrap=True)
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            if not line:
                process.wait()
                raise DemoFailed(f"the broker did not start: {log.read_text().strip() or 'it said nothing'}")
            console.print(f"   {line}")
            about = json.loads((directory / "broker.json").read_text())
            yield RunningBroker(about["bootstrap"], about["http"])
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
