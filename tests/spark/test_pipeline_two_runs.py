"""One pipeline on two hosts at once: state directories of their own, so no lock is shared; each record is one row."""

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys

import msgspec
import pytest

pytest.importorskip("deltalake")

from spark_support import BAD_EVERY, BRIEF_DRIVER, check_exact_rows, held

from millstream.pipeline.model import Errors, Sink, Trigger
from waits import until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE_S = 600  # a driver starts slowly where many programs share two cores
LOST = "failed to connect back"
"""What a driver says last whose Python workers did not start within Spark's ten seconds: it is run again, as its
message tells."""
ONCE = ("--once",)


class Hosts:
    """Runs of one pipeline with the same tables, each with a state directory of its own."""

    def __init__(self, place, pipeline):
        self.place = place
        self.pipeline = pipeline
        self.drivers = {}

    def start(self, name, *more):
        """Run the pipeline on a host, with the arguments ``more``."""
        pipeline = msgspec.structs.replace(self.pipeline, state=f"state-{name}", trigger=Trigger(every="500ms"))
        file = self.place / f"{name}.yaml"
        file.write_text(json.dumps(msgspec.to_builtins(pipeline)))
        command = [sys.executable, "-m", "millstream.cli", "pipeline", "run", *more, str(file)]
        with open(self.place / f"{name}.log", "ab") as log:
            self.drivers[name] = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)
        return self.drivers[name]

    def said(self, name):
        return (self.place / f"{name}.log").read_text()

    def all_said(self):
        return "\n".join(self.said(name)[-2000:] for name in self.drivers)

    def until(self, holds, *names):
        """Wait; these runs are started again if all that they lack is a machine that starts their workers in time."""

        def happened():
            for name in names:
                if self.ended(name) and LOST in self.said(name)[-200:]:
                    self.start(name)
            return holds()

        until(happened, self.all_said, PATIENCE_S, 0.2)

    def ended(self, name):
        return self.drivers[name].poll() is not None

    def replaced(self):
        """The runs that another one has taken over from."""
        return [name for name in self.drivers if "has taken over" in self.said(name) and self.ended(name)]

    def rows(self, sink):
        with contextlib.suppress(Exception):  # the table is not there yet
            return len(held(sink, self.place))
        return 0

    def end(self):
        for driver in self.drivers.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(60)


@pytest.fixture
def hosts(tmp_path):
    made = []

    def make(pipeline):
        made.append(Hosts(tmp_path, pipeline))
        return made[-1]

    yield make
    for each in made:
        each.end()


TABLES = {"delta": Sink(delta="t"), "iceberg": Sink(iceberg="ns.t")}


@pytest.mark.parametrize("kind", TABLES)
def test_of_two_runs_of_one_name_one_ends_and_no_row_is_there_twice(orders, hosts, tmp_path, kind):
    table = TABLES[kind]
    runs = hosts(orders.send(100).pipeline(table, spark=BRIEF_DRIVER))
    runs.start("first")
    runs.until(lambda: runs.rows(table) == orders.good, "first")
    runs.start("second")
    while not runs.replaced():  # the first run commits until the second has claimed the table
        orders.send(25)
        runs.until(lambda: runs.replaced() or runs.rows(table) == orders.good, "first", "second")
    (replaced,) = runs.replaced()
    assert runs.drivers[replaced].returncode != 0
    (other,) = {"first", "second"} - {replaced}
    orders.send(50)
    runs.until(lambda: runs.rows(table) >= orders.good, other)
    runs.drivers[other].terminate()
    assert runs.drivers[other].wait(PATIENCE_S) == 0, runs.said(other)[-2000:]
    check_exact_rows(orders, held(table, tmp_path), held(table, tmp_path, "_dead_letters"))


def test_runs_that_start_at_once_lose_and_repeat_nothing(orders, hosts, tmp_path):
    table = TABLES["delta"]
    runs = hosts(orders.send(400).pipeline(table, spark=BRIEF_DRIVER))
    for name in ("first", "second"):
        runs.start(name)
    # The one that claims first may be refused or replaced, and so may, then, the other; a later run does the rest.
    runs.until(lambda: runs.ended("first") or runs.ended("second"))
    orders.send(100)
    runs.until(lambda: (runs.ended("first") and runs.ended("second")) or runs.rows(table) >= orders.good)
    runs.end()
    runs.start("third", *ONCE)
    runs.until(lambda: runs.ended("third"))
    assert runs.drivers["third"].returncode == 0, runs.said("third")[-2000:]
    check_exact_rows(orders, held(table, tmp_path), held(table, tmp_path, "_dead_letters"))


def test_a_second_run_that_a_topic_refuses_takes_no_table_from_the_first(orders, topic, hosts, tmp_path, spark):
    out, letters, table = topic(1), topic(1), Sink(delta="t")
    runs = hosts(
        orders.send(100).pipeline(table, Sink(topic=out.name), errors=Errors(topic=letters.name), spark=BRIEF_DRIVER)
    )
    first = runs.start("first")
    runs.until(lambda: runs.said("first").count("batch 0") == 2, "first")
    assert runs.start("second").wait(PATIENCE_S) != 0
    assert "written from another state directory" in runs.said("second")
    orders.send(50)
    runs.until(lambda: runs.ended("first") or runs.rows(table) >= orders.good)
    assert not runs.ended("first"), runs.said("first")[-2000:]
    first.terminate()
    assert first.wait(PATIENCE_S) == 0, runs.said("first")[-2000:]
    assert runs.start("first", *ONCE).wait(PATIENCE_S) == 0  # what the topic had not got when the run was ended
    wanted = [n for n in range(orders.good + orders.bad) if n % BAD_EVERY]
    sent = spark.read.format("millstream").options(**out.options()).load().collect()
    assert sorted(json.loads(row.value)["id"] for row in sent) == wanted
    counts = collections.Counter(row["id"] for row in held(table, tmp_path))
    assert sorted(counts.elements()) == wanted
