"""Where the time of a pipeline's start goes: seconds and processor seconds from the command to each thing that it says.

python -m bench.pipeline_start [--classes] [--java OPTIONS] [--runs N] [--served N]

A broker of its own, a topic of a thousand JSON records; ``pipeline run --once`` each time into a new Delta table. With
``--classes`` Spark's stored classes are used, which ``python -m millstream.spark.class_archive`` makes, and without it
they are not. Processor seconds are those of the command and everything that it has started.

With ``--served`` so many topics become tables one after the other, in one ``pipeline serve``: seconds from a topic's
creation, with its records, to its rows. The first of them waits for Spark.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

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


def served(broker: Broker, place: str, count: int, environment: dict[str, str]) -> None:
    """Print how long each of so many topics takes to be a table."""
    command = [sys.executable, "-m", "millstream.cli", "pipeline", "serve", "--bootstrap", broker.bootstrap]
    command += ["--directory", place]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
        tree = psutil.Process(process.pid)
        for number in range(count):
            started, before, name = time.monotonic(), cpu_seconds(tree), f"served{number}"
            config = {"table.mode": "append", "table.sink": f"delta:{name}", "table.target.lag.ms": "1000"}
            admin.create_topics([NewTopic(name, 1, config=config)])[name].result(60)
            fill(broker, name)
            while rows_of(broker, name) < RECORDS:
                assert process.poll() is None, "pipeline serve has ended"
                time.sleep(0.05)
            print(f"topic {number + 1}: {time.monotonic() - started:.1f} s, {cpu_seconds(tree) - before:.1f} CPU-s")
        process.terminate()


def rows_of(broker: Broker, topic: str) -> int:
    """Rows of a topic's table, as the broker knows."""
    with urllib.request.urlopen(f"{broker.http}/v1/pipelines", timeout=60) as answer:
        return sum(one.get("rows", 0) for one in json.load(answer)["pipelines"] if one["topic"] == topic)


def fill(broker: Broker, topic: str) -> None:
    """Produce the records."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, json.dumps({"id": number, "who": "x"}))
    assert producer.flush(60) == 0


def main() -> None:
    """Run, and print a table a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", action="store_true", help="use stored classes")
    parser.add_argument("--java", default="", metavar="OPTIONS", help="options of the driver's virtual machine")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--served", type=int, default=0, metavar="N", help="measure this many topics of one server")
    given = parser.parse_args()
    environment = {**os.environ, **({} if given.classes else {"MILLSTREAM_CLASS_ARCHIVE": "off"})}
    with tempfile.TemporaryDirectory() as place, Broker(["orders"], shards=1) as broker:
        fill(broker, "orders")
        if given.served:
            served(broker, place, given.served, environment)
            return
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
