"""What a warm cache is worth to groups that read the same archived data one after the other.

    python -m bench.warm_fanout [--seconds 45] [--plot docs/images/warm_fanout.png] [--trace FILE]

One broker with one shard and little memory, a tiered topic whose local copies go at once, a store that answers like a
cloud's (`bench.slow_store`), 4 MiB a second, and groups that follow 30, 50 and 70 seconds behind. Each arm is measured
for some seconds after the last group has come. Each further group needs 80 MiB of cache, and the cache has 112 MiB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
import urllib.request
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from millstream.testing.process import Broker

PARTITIONS = 8
RATE = 4096
RECORD_BYTES = 1024
LAGS_S = (30, 50, 70)
SETTLE_S = 85
TOPIC = "fanout"
CONFIG = {
    "storage.mode": "tiered",
    "internal.segment.bytes": str(1 << 20),
    "retention.ms": "-1",
    "retention.local.target.ms": "0",
    "segment.upload.max.ms": "2000",
}
SETTINGS = {
    "log.retention.check.interval.ms": 500,
    "checkpoint.ms": 1000,
    "internal.shard.hook": "bench.slow_store:install",
    "cache.max.size.bytes": 112 << 20,
    "cache.min.free.percent": 0,
}


class Arm(NamedTuple):
    """One way to run it."""

    name: str
    groups: int
    settings: dict[str, object]


ARMS = (
    Arm("one group, no cache", 1, {}),
    Arm("no cache", 3, {}),
    Arm("memory", 3, {"cache.type": "memory"}),
    Arm("nvme, lru", 3, {"cache.type": "nvme", "cache.eviction.policy": "lru"}),
    Arm("nvme, interval", 3, {"cache.type": "nvme"}),
    Arm("nvme, filled at upload", 3, {"cache.type": "nvme", "cache.fill": "both"}),
)


class Result(NamedTuple):
    """What one arm came to, over the time that was measured."""

    arm: Arm
    gets_per_mib: float
    hits: float
    hit_p99_ms: float
    get_p99_ms: float
    produce_p99_ms: float


def produce(bootstrap: str, end_s: float) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "batch.size": 16384})
    value, sent, begun_s = bytes(range(256)) * (RECORD_BYTES // 256), 0, time.time()
    while (now_s := time.time()) < end_s:
        while sent < (now_s - begun_s) * RATE:
            producer.produce(TOPIC, value, partition=sent // 16 % PARTITIONS)
            sent += 1
        producer.poll(0.005)
    producer.flush(10)


def consume(bootstrap: str, lag_s: float, end_s: float) -> None:
    options = {
        "bootstrap.servers": bootstrap,
        "group.id": f"lag-{lag_s}",
        "enable.auto.commit": False,
        "fetch.message.max.bytes": 1 << 20,
        "queued.max.messages.kbytes": 1024,
        "queued.min.messages": 500,
    }
    consumer = Consumer(options)
    consumer.assign([TopicPartition(TOPIC, one, 0) for one in range(PARTITIONS)])
    while time.time() < end_s:
        for message in consumer.consume(200, 0.2):
            if message.error() is None:
                wait_s = message.timestamp()[1] / 1000 + lag_s - time.time()
                if wait_s > 0:
                    time.sleep(min(wait_s, 1))
    consumer.close()


def page(broker: Broker) -> dict[str, float]:
    """The metrics, by name and labels."""
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def p99_ms(before: dict[str, float], after: dict[str, float], name: str, labels: str = "") -> float:
    """The 99th percentile of what was observed between two pages: the upper end of its bucket."""
    found: list[tuple[float, float]] = []
    for key, count in after.items():
        match = re.fullmatch(rf'millstream_{name}_bucket{{(.*,)?le="(.+)"}}', key)
        if match and labels in key:
            found.append((float(match[2].replace("+Inf", "inf")), count - before.get(key, 0)))
    found.sort()
    wanted = 0.99 * found[-1][1] if found else 0
    return next((1000 * bound for bound, count in found if count >= wanted and count), 0.0)


def run(arm: Arm, seconds: float) -> Result:
    """One arm, on a broker of its own."""
    with (
        tempfile.TemporaryDirectory() as cache,
        Broker(settings=SETTINGS | arm.settings | {"cache.path": f"{cache}/cache"}, shards=1, memory="64MiB") as broker,
    ):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=CONFIG)])[TOPIC].result(20)
        end_s = time.time() + SETTLE_S + seconds + 2
        jobs = [multiprocessing.Process(target=produce, args=(broker.bootstrap, end_s))]
        jobs += [
            multiprocessing.Process(target=consume, args=(broker.bootstrap, lag_s, end_s))
            for lag_s in LAGS_S[: arm.groups]
        ]
        for job in jobs:
            job.start()
        time.sleep(SETTLE_S)
        before = page(broker)
        time.sleep(seconds)
        after = page(broker)
        for job in jobs:
            job.join()

    def grown(key: str) -> float:
        return after.get(key, 0) - before.get(key, 0)

    blocks = {
        one: grown(f'millstream_archive_blocks_total{{source="{one}"}}') for one in ("memory", "hot_tier", "store")
    }
    gets = grown('millstream_object_request_latency_seconds_count{operation="get"}')
    return Result(
        arm,
        gets / (seconds * RATE * RECORD_BYTES / 2**20),
        1 - blocks["store"] / max(1, sum(blocks.values())),
        p99_ms(before, after, "hot_tier_read_latency_seconds"),
        p99_ms(before, after, "object_request_latency_seconds", 'operation="get"'),
        p99_ms(before, after, "kafka_request_latency_seconds", 'api="Produce"'),
    )


def plot(results: list[Result], path: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3))
    axes.barh([one.arm.name for one in results][::-1], [one.gets_per_mib for one in results][::-1], color="#3b6ea5")
    axes.set_xlabel("GET requests to the object store per MiB produced")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    """Run all arms, or those named, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.warm_fanout", description="What a warm cache is worth to consumer groups."
    )
    parser.add_argument("--seconds", type=float, default=45, help="time that each arm is measured")
    parser.add_argument("--arms", default="", help="only arms whose name has this text")
    parser.add_argument("--plot", help="write the requests per MiB as PNG")
    parser.add_argument("--trace", help="run the three groups without a cache, and record what would reach it")
    options = parser.parse_args()
    if options.trace:
        os.environ["MILLSTREAM_TRACE"] = os.path.abspath(options.trace)
        run(Arm("trace", 3, {"internal.shard.hook": "bench.trace_reads:install"}), options.seconds)
        return
    out, results = sys.stdout.write, []
    out("| Arm | GETs per MiB | Blocks not from the store | p99 of a hit | p99 of a GET | p99 of a produce |\n")
    out("|---|---|---|---|---|---|\n")
    for arm in ARMS:
        if options.arms in arm.name:
            one = run(arm, options.seconds)
            results.append(one)
            out(
                f"| {arm.name} | {one.gets_per_mib:.2f} | {one.hits:.0%} | {one.hit_p99_ms:.1f} ms | "
                f"{one.get_p99_ms:.0f} ms | {one.produce_p99_ms:.1f} ms |\n"
            )
            sys.stdout.flush()
    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
