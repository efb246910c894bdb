"""Real data through a real broker and a declared pipeline into tables, and the proof: what `make run` does.

1. start a broker on ``demo-data/broker``;
2. stream the 336,776 flights that left New York in 2013, with their weather, planes, airports and airlines, in through
   confluent-kafka, and plant a few bad records among them; the topic of flights is tiered, so most of it moves into
   a bucket, the directory ``demo-data/broker/objects``, and its local copies go;
3. run the pipeline ``flights.yaml`` on Spark, and kill it half way;
4. run it again: it goes on;
5. read the tables back without Spark, count every record, show a table, a chart and the figures.

Every step says what it does and stops with one sentence when it cannot. ``--flights`` takes fewer of them.
"""

import argparse
import fcntl
import os
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))

from broker import DemoFailed, running_broker

from load import load_topics, wait_until_tiered

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "demo-data"
NEEDED_BYTES = 2 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description="Flights through a broker and a declared pipeline into tables.")
    parser.add_argument("--flights", type=int, default=None, help="how many flights; all of them if not said")
    parser.add_argument("--data", type=Path, default=DATA, help="directory for everything; is emptied first")
    arguments = parser.parse_args()
    console = Console()
    try:
        run(arguments.data.resolve(), arguments.flights, console)
    except DemoFailed as failure:
        console.print(f"[red]error:[/red] {failure}")
        return 1
    except KeyboardInterrupt:
        console.show_cursor()
        console.print("interrupted")
        return 130
    return 0


def run(data: Path, flights: int | None, console: Console) -> None:
    begun = time.monotonic()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # everything stays on this machine
    prepare(data)
    with running_broker(data / "broker", console) as broker:
        loaded = load_topics(broker.bootstrap, console, flights)
        wait_until_tiered(broker.http, console)
        # The tables' libraries take a second to import; nobody should wait for that to learn that a port is taken.
        from pipeline import run_and_kill
        from proof import prove

        from report import show

        runs = run_and_kill(data / "flights.yaml", broker.bootstrap, loaded.flights, console)
        console.print(
            "[bold]5.[/bold] reading everything back with deltalake, pyiceberg and a stock consumer, no Spark"
        )
        with console.status("   counting"):
            proof = prove(data, broker.bootstrap, loaded)
        show(loaded, runs, proof, data, console)
    console.print(
        f"[dim]all of it took {time.monotonic() - begun:.0f} s; the broker has stopped, its data are in {data}[/dim]",
        soft_wrap=True,
    )


def prepare(data: Path) -> None:
    """A place for the data of this run with the pipeline's file in it; what the last one left there goes."""
    if data.exists():
        if is_in_use(data / "broker" / "lock"):
            raise DemoFailed(f"a broker is running on {data / 'broker'}, which the demo would replace: stop it first")
        if any(data.iterdir()) and not (data / "flights.yaml").exists() and not (data / "broker").exists():
            raise DemoFailed(f"{data} holds files that no demo has put there; choose another directory")
        shutil.rmtree(data)
    data.mkdir(parents=True)
    free = shutil.disk_usage(data).free
    if free < NEEDED_BYTES:
        raise DemoFailed(f"{data} has {free >> 20} MiB left, the demo needs {NEEDED_BYTES >> 20}; free some space")
    shutil.copy(HERE / "flights.yaml", data)


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
