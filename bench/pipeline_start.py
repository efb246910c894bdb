"""Where the time of a pipeline's start goes: seconds and processor seconds from the command to each thing that it says.

python -m bench.pipeline_start [--classes] [--java OPTIONS] [--runs N]

A broker of its own, a topic of a thousand JSON records; ``pipeline run --once`` each time into a new Delta table. With
``--classes`` Spark's stored classes are used, which ``python -m millstream.spark.class_archive`` makes, and without it
they are not. Processor seconds are those of the command and everything that it has started.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from confluent_kafka import Producer

from millstream.testing.process import Broker

RECORDS = 1000


def cpu_seconds(process: psutil.Process) -> float:
    """Of a process and all that it has started, ended ones included as far as they were waited for."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = one.cpu_times()
            total += times.user + times.system
            if one.pid == process.pid:
                total += times.children_user + times.children_system
    return total


def one_run(file: Path, environment: dict[str, str]) -> list[tuple[str, float, float]]:
    """What the command says, with seconds and processor seconds at each line."""
    command = [sys.executable, "-m", "millstream.cli", "pipeline", "run", "--once", str(file)]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    tree = psutil.Process(process.pid)
    assert process.stderr is not None
    found = [(line.strip(), time.monotonic() - started, cpu_seconds(tree)) for line in process.stderr]
    assert process.wait() == 0, found[-3:]
    return found


def main() -> None:
    """Run, and print a table a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", action="store_true", help="use stored classes")
    parser.add_argument("--java", default="", metavar="OPTIONS", help="options of the driver's virtual machine")
    parser.add_argument("--runs", type=int, default=2)
    given = parser.parse_args()
    environment = {**os.environ, **({} if given.classes else {"MILLSTREAM_CLASS_ARCHIVE": "off"})}
    with tempfile.TemporaryDirectory() as place, Broker(["orders"], shards=1) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(RECORDS):
            producer.produce("orders", json.dumps({"id": number, "who": "x"}))
        assert producer.flush(60) == 0
        for run in range(given.runs):
            file = Path(place) / f"p{run}.yaml"
            document: dict[str, object] = {
                "pipeline": f"p{run}", "brokers": broker.bootstrap, "sinks": [{"delta": f"t{run}"}],
                "source": {"topic": "orders", "format": "json", "schema": "id bigint, who string"},
            }  # fmt: skip
            if given.java:
                document["spark"] = {"spark.driver.extraJavaOptions": given.java}
            file.write_text(json.dumps(document))
            print(f"run {run + 1}: seconds, processor seconds")
            before = (0.0, 0.0)
            for line, seconds, processor in one_run(file, environment):
                took = f"(+{seconds - before[0]:.1f}, +{processor - before[1]:.1f})"
                print(f"{seconds:6.1f} {processor:6.1f}  {took}  {line}")
                before = (seconds, processor)


if __name__ == "__main__":
    main()
