"""How old a record is when its row is committed: a pipeline with a trigger every second, 1,000 records a second.

::

    python -m bench.pipeline_latency [--seconds 60] [--every 1s] [--sink delta|iceberg]

A broker of its own. ``millstream pipeline run`` writes JSON records into a table, one commit a batch. A record's
latency lasts from its timestamp, which the producer sets, to the time of the commit that adds its row, both of this
machine's clock. Rows that were committed in the first quarter of the time are left out, because Spark starts in it.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import Producer
from deltalake import DeltaTable

from millstream.pipeline.model import Sink
from millstream.pipeline.tables.open_table import open_table
from millstream.testing.process import Broker

PER_SECOND = 1000
SINKS = {"delta": {"delta": "t"}, "iceberg": {"iceberg": "ns.t"}}


def delta_commits(place: Path) -> Iterator[tuple[float, list[str]]]:
    """Time of each commit, in seconds since 1970, and the files that it adds."""
    table, known = DeltaTable(str(place / "t")), set[str]()
    for commit in reversed(table.history()):
        table.load_as_version(commit["version"])
        files = set(table.file_uris())
        yield commit["timestamp"] / 1000, sorted(files - known)
        known |= files


def iceberg_commits(place: Path) -> Iterator[tuple[float, list[str]]]:
    """As ``delta_commits``."""
    opened: Any = open_table(Sink(iceberg="ns.t"), str(place))
    table, known = opened._fresh(), set[str]()
    for snapshot in table.snapshots():  # in the order of their commits
        files = {task.file.file_path for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()}
        yield snapshot.timestamp_ms / 1000, sorted(files - known)
        known |= files


def latencies(place: Path, sink: str, since: float) -> Iterator[float]:
    """Seconds between record and commit, of all rows that were committed after ``since``."""
    for at, files in (delta_commits if sink == "delta" else iceberg_commits)(place):
        for file in files if at > since else ():
            stamps = pq.read_table(file.removeprefix("file://"), columns=["sent"])["sent"]
            yield from (at - stamp / 1000 for stamp in stamps.to_pylist())


def send(bootstrap: str, seconds: float) -> None:
    """1,000 records a second, each with its time in ms as ``sent``."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    begun = time.monotonic()
    for number in range(int(seconds * PER_SECOND)):
        time.sleep(max(0.0, begun + number / PER_SECOND - time.monotonic()))
        now = time.time_ns() // 1_000_000
        producer.produce("orders", json.dumps({"id": number, "sent": now}), timestamp=now)
        producer.poll(0)
    if producer.flush(60):
        sys.exit("the producer could not send everything")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", default="1s")
    parser.add_argument("--sink", choices=sorted(SINKS), default="delta")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, Broker(["orders"], shards=1) as broker:
        place = Path(scratch)
        document = {
            "pipeline": "p", "brokers": broker.bootstrap, "trigger": {"every": given.every},
            "source": {"topic": "orders", "format": "json", "schema": "id bigint, sent bigint"},
            "sinks": [{**SINKS[given.sink], "compact": False}],
        }  # fmt: skip
        (place / "p.yaml").write_text(json.dumps(document))
        command = [sys.executable, "-m", "millstream.cli", "pipeline", "run", str(place / "p.yaml")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            send(broker.bootstrap, 0.1)
            for line in process.stderr:
                if "caught up" in line:
                    break
            begun = time.time()
            send(broker.bootstrap, given.seconds)
            process.send_signal(signal.SIGTERM)
            if process.wait():
                sys.exit("the pipeline failed")
        found = sorted(latencies(place, given.sink, begun + given.seconds / 4))
        cuts = statistics.quantiles(found, n=100)
        print(f"{given.sink}, {given.every}: {len(found)} rows, p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s")


if __name__ == "__main__":
    main()
