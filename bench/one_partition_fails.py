"""Latency of the other partitions while one partition fails again and again: ``python -m bench.one_partition_fails``.

A stock producer sends ``RATE`` records a second with acks=all to the partitions of one topic. Windows of ``WINDOW_S``
seconds alternate: in every second one a fault is planted in the append of another partition, of a topic of its own.
That partition gets a record, fails, and is repaired (``topic repair --execute``), as often as the window has time for.
Printed are p50, p99 and the largest latency of both kinds of windows, how often the partition failed, and how many
records were not acknowledged. The windows alternate so that a busy machine disturbs both alike.
"""

import json
import os
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from confluent_kafka import Producer

from millstream.testing import Broker

RATE = 400
WINDOW_S = 5.0
WINDOWS = 16
PARTITIONS = 8
TESTS = Path(__file__).resolve().parents[1] / "tests" / "process"


class Faults(threading.Thread):
    """Fails the partition and repairs it, while ``on`` is set."""

    def __init__(self, broker: Broker, point: Path) -> None:
        super().__init__(daemon=True)
        self.on = threading.Event()
        self.over = False
        self.failures = 0
        self._broker = broker
        self._point = point

    def run(self) -> None:
        settings = {
            "bootstrap.servers": self._broker.bootstrap,
            "retries": 0,
            "message.timeout.ms": 2000,
            "log_level": 0,
        }
        producer = Producer(settings)
        while not self.over:
            if not self.on.wait(0.1):
                continue
            self._point.write_text("append|fails|once")
            producer.produce("fails", bytes(100), partition=0)
            producer.flush(5)
            self.failures += not self._point.exists()
            self._repair()

    def _repair(self) -> None:
        body = json.dumps({"topic": "fails", "partition": 0, "execute": True}).encode()
        request = urllib.request.Request(
            f"{self._broker.http}/v1/partitions/repair", body, {"content-type": "application/json"}
        )
        try:
            urllib.request.urlopen(request, timeout=60).read()
        except urllib.error.HTTPError:
            pass  # it is served


def load(producer: Producer, seconds: float, latencies: list[float], lost: list[str]) -> None:
    """Send at the rate for a while, and note what became of each record."""

    def sent(error: object, began: float) -> None:
        if error is None:
            latencies.append(time.perf_counter() - began)
        else:
            lost.append(str(error))

    start = time.perf_counter()
    for number in range(int(seconds * RATE)):
        wait = start + number / RATE - time.perf_counter()
        producer.poll(max(0.0, wait))
        began = time.perf_counter()
        producer.produce(
            "other", bytes(500), partition=number % PARTITIONS, on_delivery=lambda e, _, began=began: sent(e, began)
        )
    producer.flush(60)


def line(name: str, latencies: list[float]) -> str:
    found = sorted(latencies)
    p50, p99 = (found[int(len(found) * q)] * 1000 for q in (0.5, 0.99))
    return f"{name:8} {len(found):7} records  p50 {p50:7.2f} ms  p99 {p99:7.2f} ms  largest {found[-1] * 1000:7.2f} ms"


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        point = Path(directory) / "point"
        path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
        with Broker(
            topics={"other": PARTITIONS, "fails": 1},
            shards=1,
            settings={"internal.shard.hook": "fault_points:hook"},
            env={"MILLSTREAM_FAULT_POINT": str(point), "PYTHONPATH": path},
        ) as broker:
            faults = Faults(broker, point)
            faults.start()
            producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": -1, "linger.ms": 0, "log_level": 0})
            kinds: dict[bool, list[float]] = {False: [], True: []}
            lost: list[str] = []
            load(producer, WINDOW_S, [], lost)  # connections and caches
            for window in range(WINDOWS):
                failing = bool(window % 2)
                (faults.on.set if failing else faults.on.clear)()
                load(producer, WINDOW_S, kinds[failing], lost)
            faults.over = True
            faults.join(60)
    print(line("quiet", kinds[False]))
    print(line("failing", kinds[True]))
    print(f"the partition failed {faults.failures} times; {len(lost)} records were not acknowledged")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
