"""Spark reads a topic: our data source from our broker, and Spark's own Kafka connector from Apache Kafka.

    python -m bench.spark_beside      (started by :func:`measure`, see ``child``)

A local Spark with two cores, in a process of its own for each round, fills two topics through the broker's Kafka port
(values of 100 bytes and of 1 KB) and reads every column of every row into a sink that does nothing, on a virtual
machine that has read the topic once before. The best run counts, as in ``spark_scan``, whose checks are used: number of
rows, sum of offsets, and the sum of the CRC-32 of every value, which Spark computes over the rows it got.

For most of its first minute the virtual machine compiles what it runs, beside the query and on the same cores: that is
a price of the session and not of a gigabyte. So there are several runs, and the first of all has a figure of its own,
which is what a session that has just begun gives.

The connector comes from Maven, once, into ``~/.cache/millstream/spark-connector``; ``peers/spark.xml`` names its jars.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import raw
from bench.child import Child, instructions
from bench.peers.kafka import PeerUnavailable
from bench.rows import Alone, Figures, Plan, Say
from bench.subjects import Subject

POM = Path(__file__).parent / "peers" / "spark.xml"
ALONE = Alone(one_of_ours=True)
TIMEOUT_S = 600.0
OURS = {"segment.bytes": str(32 << 20)}
"""Sealed segments can be read from files; the peer keeps its default, which suits it."""


def connector() -> list[Path]:
    """Jars of Spark's Kafka connector, fetched on first use."""
    target = Path.home() / ".cache" / "millstream" / "spark-connector"
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / ".spark-connector.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            if shutil.which("mvn") is None:
                raise PeerUnavailable("Spark's Kafka connector is fetched with Maven: install it")
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                goal = ["dependency:copy-dependencies", f"-DoutputDirectory={scratch}/libs"]
                command = ["mvn", "-q", "-B", "-f", shutil.copy(POM, Path(scratch, "pom.xml")), *map(str, goal)]
                done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise PeerUnavailable(f"Maven could not fetch the connector: {(done.stdout + done.stderr)[-2000:]}")
                Path(scratch, "libs").rename(target)
    return sorted(target.glob("*.jar"))


def measure(subject: Subject, plan: Plan, say: Say) -> Figures:
    """Rates of both sizes, Spark's and the broker's CPU a GB."""
    jars = [str(path) for path in connector()] if subject.is_peer else []
    with raw.Caller(subject.bootstrap) as caller:
        caller.create_topics({"scan-100": 4, "scan-1000": 4}, {} if subject.is_peer else OURS)
    what = {"bootstrap": subject.bootstrap, "jars": jars, "bytes": plan.spark_bytes, "runs": plan.spark_runs}
    figures: Figures = {}
    with Child("bench.spark_beside", what) as spark:
        for size in ("100", "1000"):
            say(f"filling, {size} bytes a value")
            assert spark.hear() == "filled"
            say(f"reading, {size} bytes a value")
            cpu = subject.cpu_seconds()
            figures |= spark.hear()
            figures[f"broker_cpu_{size}"] = (subject.cpu_seconds() - cpu) / figures.pop("gigabytes")
        spark.result(TIMEOUT_S)
    return figures


def _read(spark: Any, given: dict[str, Any], topic: str, stats: str) -> Any:
    if given["jars"]:
        options = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": topic, "startingOffsets": "earliest"}
        return spark.read.format("kafka").options(**options).load()
    options = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": topic, "stats.dir": stats}
    return spark.read.format("millstream").options(**options).load()


def main() -> int:
    given = instructions()
    answers = os.dup(1)  # Spark's virtual machine writes to standard output as it likes
    os.dup2(2, 1)

    def answer(what: object) -> None:
        os.write(answers, (json.dumps(what) + "\n").encode())

    from rich.console import Console

    from bench import spark_scan
    from millstream import spark as ms

    console = Console(file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "3g"}
    if given["jars"]:
        conf["spark.jars"] = ",".join(given["jars"])
    spark = ms.session("scan", cores=spark_scan.CORES, conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    try:
        for load in spark_scan.LOADS:
            size = given["bytes"] / (2 if load.value_bytes == 100 else 1)
            filled = spark_scan.fill(given["bootstrap"], load, size / 1e9, console)
            answer("filled")
            with tempfile.TemporaryDirectory() as stats:
                table = _read(spark, given, filled.topic, stats)
                spark_scan.verify(table, filled)
                runs = [spark_scan.measure(table) for _ in range(given["runs"])]
                shares = None if given["jars"] else ms.read_stats(Path(stats))
            best = min(runs, key=lambda run: run.seconds)
            gigabytes = filled.value_bytes / 1e9
            figures = {
                f"mrows_{load.value_bytes}": filled.rows / best.seconds / 1e6,
                f"mrows_first_{load.value_bytes}": filled.rows / runs[0].seconds / 1e6,
                f"gb_{load.value_bytes}": gigabytes / best.seconds,
                f"spark_cpu_{load.value_bytes}": (best.jvm_cpu_s + best.python_cpu_s) / gigabytes,
                "gigabytes": gigabytes * (len(runs) + 1),
            }
            if shares is not None:
                figures[f"from_files_{load.value_bytes}"] = 100 * shares.segment_rows / shares.rows
            answer(figures)
    finally:
        spark.stop()
    answer("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
