"""Real data through a real broker into Spark, and back: what `make run` does.

1. start a broker on ``demo-data/broker``;
2. stream the 336,776 flights that left New York in 2013, with their weather, planes and airports, in through
   confluent-kafka;
3. run a PySpark streaming job over them: delays by week and airline, joined with the airlines' names, into a Parquet
   table and, at least once, into a topic;
4. show the table, a chart and the figures; stop everything and leave the data.

Every step says what it does and stops with one sentence when it cannot.
"""

import fcntl
import os
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))

from broker import DemoFailed, running_broker

from load import load_topics
from report import show

DATA = Path(__file__).parents[2] / "demo-data"
NEEDED_BYTES = 2 << 30


def main() -> int:
    console = Console()
    try:
        run(console)
    except DemoFailed as failure:
        console.print(f"[red]error:[/red] {failure}")
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    return 0


def run(console: Console) -> None:
    begun = time.monotonic()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # everything stays on this machine
    prepare()
    with running_broker(DATA / "broker", console) as broker:
        loaded = load_topics(broker.bootstrap, console)
        # Spark takes a second to import; nobody should wait for that to learn that a port is taken.
        from pipeline import run_pipeline

        results = run_pipeline(broker.bootstrap, DATA, loaded.flights, console)
        show(loaded, results, DATA, console)
    console.print(
        f"[dim]all of it took {time.monotonic() - begun:.0f} s; the broker has stopped, its data are in {DATA}[/dim]"
    )


def prepare() -> None:
    """An empty place for the data of this run; what the last one left there goes."""
    if DATA.exists():
        if is_in_use(DATA / "broker" / "lock"):
            raise DemoFailed(f"a broker is running on {DATA / 'broker'}, which the demo would replace: stop it first")
        shutil.rmtree(DATA)
    DATA.mkdir(parents=True)
    free = shutil.disk_usage(DATA).free
    if free < NEEDED_BYTES:
        raise DemoFailed(f"{DATA} has {free >> 20} MiB left, the demo needs {NEEDED_BYTES >> 20}; free some space")


def is_in_use(lock: Path) -> bool:
    """Whether a broker holds the lock of its data directory."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


if __name__ == "__main__":
    sys.exit(main())
