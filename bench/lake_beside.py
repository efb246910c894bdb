"""A partitioned table and a table with keys: CPU of a pipeline beside that of Spark's own connector and writers.

::

    python -m bench.lake_beside [--mb 200] [--rounds 3] [--formats delta,iceberg]

One topic of JSON records of 270 bytes, in a broker of its own, is made a table in two ways:

- *partitioned*: every record is a row, in eight partitions;
- *upsert*: in ten batches, each key comes about ten times, and the table has its latest record.

Ours are pipelines without a query on this environment's PySpark, with all that they promise (dead letters, one commit a
batch). The peer is Spark 4.1, the latest for which there are jars of both formats: Spark's Kafka connector,
``from_json``, and the writers of Delta and Iceberg, with ``MERGE INTO`` in ``foreachBatch``. It drops what does not
decode, and a repeated batch of the partitioned table would be there twice.

Both have a session of two cores and take turns. CPU is that of driver, virtual machine and workers, and not the
broker's; what the same work costs with a topic of 16 records is taken off, and the run with the least counts: the first
of a session is dear, because its virtual machine compiles. Rows are counted by deltalake and pyiceberg.
"""

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from bench import processes
from bench.child import Child
from bench.lake_writers import BATCHES
from conformance import tools
from millstream.testing.process import Broker

SPARK = "4.1.1"
PYSPARK = f"pyspark=={SPARK}"
JARS = (
    "io.delta:delta-spark_4.1_2.13:4.1.0",
    "io.delta:delta-storage:4.1.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK}",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy"
NOTE_BYTES = 200
LARGE, SMALL = "lake", "lake_small"
FEW = 16
"""Records of the small topic."""


def peer_place() -> tuple[Path, list[str]]:
    """The peer's Python packages and its jars, fetched once."""

    def install(target: Path) -> None:
        uv = str(Path(sys.executable).with_name("uv"))
        tools.run([uv, "pip", "install", "-q", "--python", sys.executable, "--target", str(target), PYSPARK], target)

    def fetch(target: Path) -> None:
        tools.need("mvn", "java")
        for jar in JARS:
            tools.run(["mvn", "-q", "-B", COPY, f"-Dartifact={jar}", f"-DoutputDirectory={target}"], target)

    jars = tools.cached(f"lake-jars-{SPARK}", fetch).glob("*.jar")
    return tools.cached(f"reader-spark-{SPARK}", install), [str(jar) for jar in sorted(jars)]


class Filled(NamedTuple):
    """What is in the large topic: records, keys, and gigabytes of values."""

    rows: int
    keys: int
    gigabytes: float


class Cost(NamedTuple):
    """Of the tables of one round: CPU-seconds of both topics, and seconds of the large one."""

    cpu_s: float
    start_cpu_s: float
    seconds: float


def fill(bootstrap: str, size: int) -> Filled:
    """Produce both topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics([NewTopic(name, 4) for name in (LARGE, SMALL)]).values():
        done.result(60)
    order, sent, keys = random.Random(7), 0, set[int]()
    count = size // (NOTE_BYTES + 70)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "zstd"})
    for topic, records in ((SMALL, FEW), (LARGE, count)):
        for number in range(records):
            key = order.randrange(max(1, records // BATCHES))
            note = order.randbytes(NOTE_BYTES // 2).hex()
            value = json.dumps({"id": key, "part": f"p{key % 8}", "amount": number / 8, "note": note})
            producer.produce(topic, value, str(key))
            producer.poll(0.05 if len(producer) > 50_000 else 0)
            if topic == LARGE:
                sent += len(value)
                keys.add(key)
    if producer.flush(120):
        sys.exit("the producer could not send everything")
    return Filled(count, len(keys), sent / 1e9)


def counted(place: Path, kind: str, *, is_peer: bool) -> int:
    """Rows of a table."""
    if kind == "delta":
        return DeltaTable(str(place / "t")).to_pyarrow_dataset().count_rows()
    if is_peer:
        metadata = place.parent / "warehouse" / place.name / "t" / "metadata"
        newest = metadata / f"v{(metadata / 'version-hint.text').read_text().strip()}.metadata.json"
    else:
        files = (place / ".millstream" / "iceberg" / "warehouse").glob("*/t/metadata/*.metadata.json")
        newest = max(files, key=lambda file: file.name)
    return StaticTable.from_metadata(str(newest)).scan().count()


def cost(child: Child, place: Path, kind: str, mode: str, filled: Filled, *, is_peer: bool) -> Cost:
    """Have a table made of each topic. Exits without figures if the large one has another number of rows."""
    used: dict[str, float] = {}
    seconds = 0.0
    with processes.Watched(child.pid) as cpu:
        for topic, rows in ((SMALL, FEW), (LARGE, filled.rows)):
            own = Path(f"{place}_{topic}")
            own.mkdir()
            before, begun = cpu.seconds(), time.monotonic()
            child.tell({"format": kind, "mode": mode, "topic": topic, "rows": rows, "place": str(own)})
            child.hear(3600)
            used[topic], seconds = cpu.seconds() - before, time.monotonic() - begun
    held, wanted = counted(own, kind, is_peer=is_peer), filled.rows if mode == "partitioned" else filled.keys
    if held != wanted:
        sys.exit(f"{own.name}: {held} rows, and not {wanted}")
    return Cost(used[LARGE], used[SMALL], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200, help="megabytes of values in the topic")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--formats", default="delta,iceberg")
    given = parser.parse_args()
    packages, jars = peer_place()
    with tempfile.TemporaryDirectory(prefix="bench-lake-") as scratch, Broker(shards=1) as broker:
        filled = fill(broker.bootstrap, given.mb * 1_000_000)
        what = {"bootstrap": broker.bootstrap, "jars": jars, "place": scratch}
        with (
            Child("bench.lake_writers", {**what, "peer": False}) as ours,
            Child("bench.lake_writers", {**what, "peer": True}, {"PYTHONPATH": str(packages)}) as peer,
        ):
            for child in (ours, peer):
                child.hear()
            for kind, mode in itertools.product(given.formats.split(","), ("partitioned", "upsert")):
                found: dict[str, list[Cost]] = {"pipeline": [], "spark": []}
                for number in range(given.rounds):
                    for name in ("pipeline", "spark") if number % 2 == 0 else ("spark", "pipeline"):
                        place, is_peer = Path(scratch, f"{name}_{kind}_{mode}_{number}"), name == "spark"
                        child = peer if is_peer else ours
                        found[name].append(cost(child, place, kind, mode, filled, is_peer=is_peer))
                used = {name: said(f"{kind}, {mode}, {name}", rounds, filled) for name, rounds in found.items()}
                print(
                    f"{kind}, {mode}: Spark's own takes {used['spark'] / used['pipeline']:.2f} times the CPU",
                    flush=True,
                )


def said(what: str, rounds: list[Cost], filled: Filled) -> float:
    """Print what tables cost, the least of all rounds; returns CPU-seconds a gigabyte."""
    start = min(one.start_cpu_s for one in rounds)
    by_round = [(one.cpu_s - start) / filled.gigabytes for one in rounds]
    print(
        f"{what}: {min(by_round):.1f} CPU-s a GB (rounds: {', '.join(f'{one:.1f}' for one in by_round)}), "
        f"{start:.1f} CPU-s with {FEW} records, {min(one.seconds for one in rounds):.1f} s",
        flush=True,
    )
    return min(by_round)


if __name__ == "__main__":
    main()
