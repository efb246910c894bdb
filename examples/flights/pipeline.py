"""Run the declared pipeline as anybody would, with ``millstream pipeline run``, and kill it in the middle.

The first run gets SIGKILL, driver, virtual machine and all, once its Delta table holds half of the flights: whatever
batch it is at is lost. The second run is the same command again. It finds in the tables what they have, and goes on.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import deltalake
from broker import DemoFailed
from rich.console import Console

RUN_TIMEOUT_S = 900
"""Of one run. Two quiet cores need a twentieth of it; a busy machine is no reason to give up."""


@dataclass(frozen=True)
class Runs:
    """What the two runs took, Spark's start included; ``rows_at_kill`` is None if the first ended too early for it."""

    seconds: float
    rows_at_kill: int | None


def run_and_kill(file: Path, bootstrap: str, flights: int, console: Console) -> Runs:
    """Run the pipeline, kill it half way, run it again to its end."""
    command = [str(Path(sys.executable).with_name("millstream")), "pipeline", "run", "--once", str(file)]
    console.print(f"[bold]3.[/bold] running the pipeline: millstream pipeline run --once {file.name}", soft_wrap=True)
    begun = time.monotonic()
    killed = run_until_half(command, bootstrap, file.parent / "tables" / "flights", flights, console)
    if killed is None:
        console.print("   it was done before it could be killed")
    else:
        console.print(
            f"   [bold red]kill -9[/bold red] at {killed:,} of {flights:,} rows: driver, Java and workers are gone"
        )
        console.print("[bold]4.[/bold] the same command again: it goes on where the tables end")
        with started(command, bootstrap) as run:
            wait(run, time.monotonic() + RUN_TIMEOUT_S)
            check(run, file)
    return Runs(time.monotonic() - begun, killed)


class started:  # noqa: N801 (reads as a verb)
    """A run in a process group of its own, which is gone when the block ends."""

    def __init__(self, command: list[str], bootstrap: str) -> None:
        self._command = [*command, "--bootstrap", bootstrap]

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._run = subprocess.Popen(self._command, start_new_session=True)
        return self._run

    def __exit__(self, *_: object) -> None:
        kill(self._run)


def run_until_half(command: list[str], bootstrap: str, table: Path, flights: int, console: Console) -> int | None:
    """Rows of the table when the run was killed; None if it ended by itself."""
    with started(command, bootstrap) as run:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while run.poll() is None:
            rows = rows_of(table)
            if flights // 2 <= rows < flights:
                time.sleep(0.3)  # into the batch that follows
                kill(run)
                console.show_cursor()  # the progress bar of a process that was killed has hidden it
                console.print()
                return rows_of(table)
            if time.monotonic() > deadline:
                raise DemoFailed(f"the pipeline has not come half way in {RUN_TIMEOUT_S} s")
            time.sleep(0.1)
        check(run, table.parents[1])
        return None


def rows_of(table: Path) -> int:
    """Rows that the commits of a Delta table name."""
    if not deltalake.DeltaTable.is_deltatable(str(table)):
        return 0
    return deltalake.DeltaTable(str(table)).count()


def wait(run: "subprocess.Popen[bytes]", deadline: float) -> None:
    try:
        run.wait(deadline - time.monotonic())
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"the pipeline has not ended in {RUN_TIMEOUT_S} s") from None


def check(run: "subprocess.Popen[bytes]", file: Path) -> None:
    if run.returncode:
        place = file.parent / ".millstream" / "flights" / "spark.log"
        raise DemoFailed(f"the pipeline ended with code {run.returncode}; what Spark said is in {place}")


def kill(run: "subprocess.Popen[bytes]") -> None:
    """End a run with everything that it started. The group is there until its leader has been waited for."""
    if run.returncode is None:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
