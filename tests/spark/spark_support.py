"""What the tests on Spark have in common beside their fixtures."""

import collections
import json
import os
import random
import signal
import subprocess
import sys
import time

import msgspec
import pyarrow as pa
from class_archive import BRIEF

from millstream.pipeline.checks import target_of
from millstream.pipeline.tables.open_table import open_table
from waits import moment

BRIEF_DRIVER = {"spark.driver.extraJavaOptions": BRIEF}
"""``spark:`` of a declared pipeline whose driver lives that briefly."""

SMALL_SEGMENTS = 1 << 20  # the least that a topic may have

BAD_EVERY = 25
"""One broken record after so many."""


def delta(path):
    import deltalake

    return pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table()).to_pylist()


def check_exact(orders, place, name="t"):
    """Every record is in the Delta table or in its dead letters, once."""
    check_exact_rows(orders, delta(place / name), delta(place / f"{name}_dead_letters"))


def check_exact_rows(orders, rows, letters):
    """Every record is in the rows of a table or in its dead letters, once."""
    ids = collections.Counter(row["id"] for row in rows)
    assert max(ids.values()) == 1
    assert set(ids) == {number for number in range(orders.good + orders.bad) if number % BAD_EVERY}
    source_partitions = collections.Counter((row["partition"], row["offset"]) for row in letters)
    assert (len(source_partitions), max(source_partitions.values())) == (orders.bad, 1)
    assert {(row["value"], row["topic"]) for row in letters} == {(b"{broken", orders.topic.name)}
    assert all("malformed" in row["error"] for row in letters)


def held(sink, place, suffix=""):
    """The rows of a sink's table, or of the one beside it, as the library of the format reads them."""
    found = [batch.to_pylist() for batch in open_table(sink, str(place), suffix=suffix).scan()]
    return [row for rows in found for row in rows]


def commits(sink, place):
    """How many commits the table of a sink has, about."""
    if sink.iceberg is not None:
        name = sink.iceberg.rpartition(".")[2]
        files = (place / ".millstream" / "iceberg" / "warehouse").glob(f"*/{name}/metadata/*.metadata.json")
        return max((int(file.name.partition("-")[0]) for file in files), default=0)
    if sink.delta.startswith("s3://"):
        table = open_table(sink, str(place))
        return int(table.version()) if table.exists() else 0
    return len(list((place / sink.delta / "_delta_log").glob("*.json")))


def run_killed(pipeline, place, *, max_records=100):
    """Run a pipeline whose driver is killed ``MILLSTREAM_KILLS`` times at random moments of the batches of its
    sinks, then to its end. ``MILLSTREAM_SEED`` says at which moments.
    """
    seed = os.environ.get("MILLSTREAM_SEED", "7")
    chance = random.Random(seed)
    document = msgspec.to_builtins(pipeline)
    document["source"]["max_records"] = max_records
    kills = int(os.environ.get("MILLSTREAM_KILLS", "10"))
    (place / "p.yaml").write_text(json.dumps(document))
    command = [sys.executable, "-m", "millstream.cli", "pipeline", "run", "--once", str(place / "p.yaml")]
    killed = 0
    for number in range(3 * kills):
        if killed == kills:
            break
        sink = chance.choice(pipeline.sinks)
        awaited, delay_s = commits(sink, place) + chance.randrange(4), chance.uniform(0, 0.5)
        with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as driver:
            deadline = time.monotonic() + 300
            while driver.poll() is None and time.monotonic() < deadline:
                if commits(sink, place) > awaited:
                    moment(delay_s)
                    break
                moment(0.02)
            killed += driver.poll() is None
            print(
                f"seed {seed}, kill {number}: {delay_s:.3f} s behind commit {commits(sink, place)} of {target_of(sink)}"
            )
            os.killpg(driver.pid, signal.SIGKILL)
    assert killed >= kills * 2 // 3, "drivers ended by themselves"
    # Where the machine is too busy, Spark's Python workers come up too late, and a run ends.
    assert any(subprocess.run(command, check=False).returncode == 0 for _ in range(5))
