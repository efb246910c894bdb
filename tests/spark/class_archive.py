"""Classes of Spark's virtual machine, loaded once and kept in a file: drivers that tests start and kill come up sooner.

python tests/spark/class_archive.py      makes the file, unless it is there; `make test-spark` does that first

The file is Java's own archive of classes (``-XX:ArchiveClassesAtExit``): a session runs small queries, and what it has
loaded is stored when it ends. Java checks on every start that the archive is of this Java and of these jars, and goes
without it otherwise, so a file that is old or foreign costs time and changes nothing. It is written under another name
and renamed, because a virtual machine that starts meanwhile must not map half of it. Without the file all tests run as
well. On two busy cores a virtual machine took 3.8 CPU-seconds with it to the first query, 7.9 without it, and 13.7 with
Java's own settings.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a virtual machine that lives for minutes: compile quickly, and collect garbage without threads of its own."""


def archive_path() -> Path:
    """Where the archive of this Java and this Spark is, or would be: in the environment, and so it goes with it."""
    import pyspark

    from millstream.spark.java import find_java_home

    spark = Path(pyspark.__file__).parent
    name = f"{os.path.realpath(find_java_home())} {spark} {os.stat(spark / 'jars').st_mtime_ns}"
    return Path(sys.prefix) / f"spark-classes-{hashlib.sha256(name.encode()).hexdigest()[:12]}.jsa"


def java_options() -> str:
    """Options for every virtual machine of these tests: brief ones, and the archive if it is there."""
    path = archive_path()
    # Whatever Java has to say about an archive goes to standard output, where tests read answers.
    return f"{BRIEF} -XX:SharedArchiveFile={path} -Xlog:disable" if path.exists() else BRIEF


def make() -> None:
    """Run a session that stores what it loads."""
    from pyspark.find_spark_home import _find_spark_home

    from millstream.spark.java import find_java_home

    path = archive_path()
    if path.exists():
        return
    new = path.with_name(f"{path.name}.{os.getpid()}")
    options = f"{BRIEF} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
    command = [os.path.join(_find_spark_home(), "bin", "spark-submit"), "--master", "local[2]"]
    command += ["--driver-java-options", options, __file__, "load"]
    env = {**os.environ, "JAVA_HOME": find_java_home(), "PYSPARK_PYTHON": sys.executable}
    env |= {"PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode or not new.exists():
        print(f"no archive of Spark's classes was made; tests go without it\n{done.stderr[-500:]}", file=sys.stderr)
        new.unlink(missing_ok=True)
        return
    os.replace(new, path)


def load() -> None:
    """Use what the tests use: a stream with batches in Python, a join, a file format."""

    from millstream import spark as ms

    spark = ms.session("classes", conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as place:
        numbers = spark.range(10)

        def write(frame, number):
            kept = frame.mapInArrow(lambda batches: batches, frame.schema)
            kept.selectExpr("to_json(struct(value)) AS value").write.parquet(f"{place}/{number}")
            frame.join(numbers, frame.value == numbers.id, "left").count()

        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{place}/checkpoint")
        query = writer.trigger(processingTime="0 seconds").start()
        while len(query.recentProgress) < 2:
            assert query.awaitTermination(0.2) is False
        query.stop()
    spark.stop()


if __name__ == "__main__":
    load() if sys.argv[1:] == ["load"] else make()
