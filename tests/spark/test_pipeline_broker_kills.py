"""Brokers die under a pipeline that runs: it goes on or is started again, and the tables of every mode are exact."""

import os
import random
import threading
import types

import pytest

pytest.importorskip("deltalake")

from keyed_records import Customers, check_every_mode, sinks_of_every_mode

from conftest import TopicOnBroker
from millstream.errors import MillstreamError
from millstream.pipeline.model import Pipeline, Trigger
from millstream.pipeline.runner import prepared, run
from millstream.testing import cluster
from waits import moment, until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(int(os.environ.get("MILLSTREAM_KILLS", "30")) < 10, reason="for MILLSTREAM_KILLS of 10 or more"),
]

KILLS = (1, 2, 3, 2, 1, 3)
RECORDS = 200


class Running:
    """A pipeline that is run again when it ends. ``ended`` has the reasons for which it did."""

    def __init__(self, pipeline, place):
        self._pipeline, self._place = pipeline, str(place)
        self._stopping = threading.Event()
        self._run, self._thread = None, threading.Thread(target=self._go, daemon=True)
        self.ended, self.offsets = [], 0
        self._thread.start()

    def _go(self):
        while not self._stopping.is_set():
            try:
                with prepared(self._pipeline, self._place, watch=self) as self._run:
                    self._run.run(False)
            except MillstreamError as error:
                self.ended.append(error.message)
                self._stopping.wait(1)

    def phase(self, what):
        pass

    def begin(self, sinks):
        pass

    def tick(self):
        if self._stopping.is_set():
            self._run.stop()
        at = [sum(sum(ends.values()) for ends in sink.position.ends.values()) for sink in self._run.sinks]
        self.offsets = min(at)

    def batch(self, sink, done):
        pass

    def stop(self):
        self._stopping.set()
        self._thread.join()


def test_tables_of_every_mode_are_exact_though_brokers_die_under_the_run(spark, tmp_path):
    order = random.Random(7)
    with cluster(3, settings={"default.replication.factor": 3, "min.insync.replicas": 2}, networks=False) as three:
        reached = types.SimpleNamespace(bootstrap=three.bootstrap, http="")
        customers = Customers(lambda partitions: TopicOnBroker(reached, partitions))
        by_mode = sinks_of_every_mode("delta")
        pipeline = Pipeline(
            pipeline="p",
            brokers=three.bootstrap,
            source=customers.source(max_records=60),
            sinks=list(by_mode.values()),
            trigger=Trigger(every="500ms"),
        )
        running = Running(pipeline, tmp_path)
        try:
            for node in KILLS:
                customers.send(RECORDS)
                until(lambda: running.offsets > customers.sent - RECORDS, lambda: running.ended, 600)
                three.kill(node)
                moment(order.uniform(0, 1))
                customers.send(RECORDS)
                until(lambda: running.offsets > customers.sent - RECORDS, lambda: running.ended, 600)
                three.restart(node)
        finally:
            running.stop()
        print(f"{len(KILLS)} brokers killed; runs that ended: {running.ended}")
        run(pipeline, str(tmp_path), once=True)
        check_every_mode(customers, by_mode, tmp_path)
