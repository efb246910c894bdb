"""What the pages of a broker's console cost, with many topics and groups: ``python -m bench.console_pages``.

One broker with ``--topics`` topics of one partition and ``--groups`` groups that have committed. Each page is read
``--rounds`` times: cold, that is more than two seconds after the last one, so that the metadata of all topics are asked
for again, and warm, at once after another page. Told are the CPU seconds of all processes of the broker together, those
of the console's process among them, the time until the first byte and until the last one, and the size. The budget is
0.1 CPU seconds a page; the first byte has to leave before the last row is rendered.
"""

import argparse
import http.client
import statistics
import time
import urllib.parse
from typing import NamedTuple

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.client.cluster import Cluster
from millstream.console.access import SNAPSHOT_AGE_S
from millstream.testing.process import Broker
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

PAGES = (
    "/",
    "/brokers",
    "/brokers/0",
    "/topics",
    "/topics?page=100",
    "/topics?sort=-partitions",
    "/topics?q=t-77",
    "/topics/t-07777",
    "/topics/t-07777/messages",
    "/topics/t-07777/groups",
    "/topics/t-07777/properties",
    "/groups",
    "/groups?page=20",
    "/group?id=g-0777",
    "/transactions",
    "/settings",
    "/rights",
    "/quotas",
    "/tiers",
    "/caches",
    "/pipelines",
    "/machine",
)
CHUNK = 500


class Cost(NamedTuple):
    """One reading of a page: CPU seconds of all processes, of the console's, and times in ms."""

    cpu_s: float
    console_cpu_s: float
    first_ms: float
    last_ms: float
    size: int


def fill(broker: Broker, topics: int, groups: int) -> None:
    """Topics, and groups that have committed an offset of two of them."""
    admin = AdminClient(broker.client)
    names = [f"t-{number:05}" for number in range(topics)]
    for start in range(0, topics, CHUNK):
        made = admin.create_topics([NewTopic(name, 1, 1) for name in names[start : start + CHUNK]])
        for future in made.values():
            future.result(120)
    first = Consumer({**broker.client, "group.id": "first"})  # the topic of offsets is made by the first group
    first.commit(offsets=[TopicPartition(names[0], 0, 0)], asynchronous=False)
    first.close()
    with Cluster(broker.bootstrap) as cluster:
        connection = cluster.any_connection()
        version = connection.version_of(OffsetCommitRequest.API_KEY, 0, 8)
        for number in range(groups):
            at = [OffsetCommitRequestPartition(0, 0)]
            of = [OffsetCommitRequestTopic(name=names[place % topics], partitions=at) for place in (number, number * 7)]
            request = OffsetCommitRequest(f"g-{number:04}", topics=of)
            answer = connection.call(request, OffsetCommitResponse, version)
            assert not any(each.error_code for topic in answer.topics for each in topic.partitions), answer


def seconds(broker: Broker) -> tuple[float, float]:
    """CPU seconds so far of all processes of the broker, and of the console's."""
    every, console = 0.0, 0.0
    own = psutil.Process(broker.pid)
    for process in (own, *own.children(recursive=True)):
        times = process.cpu_times()
        every += times.user + times.system
        if "registry, console" in " ".join(process.cmdline()):
            console += times.user + times.system
    return every, console


def read(broker: Broker, path: str) -> Cost:
    """Read one page."""
    before = seconds(broker)
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(broker.http).netloc, timeout=60)
    start = time.perf_counter()
    connection.request("GET", f"/console{path}")
    answer = connection.getresponse()
    assert answer.status == 200, (path, answer.status)
    size = len(answer.read(1))
    first = time.perf_counter()
    size += len(answer.read())
    last = time.perf_counter()
    connection.close()
    after = seconds(broker)
    return Cost(after[0] - before[0], after[1] - before[1], (first - start) * 1000, (last - start) * 1000, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with Broker(None, shards=1, memory="512MiB") as broker:
        fill(broker, given.topics, given.groups)
        for path in PAGES:
            read(broker, path)
        idle = seconds(broker)[0]
        time.sleep(10)
        print(f"idle: {(seconds(broker)[0] - idle) / 10:.4f} CPU-s a second, which the figures contain")
        print(f"{'page':28} {'cold':>7} {'of it':>7} {'warm':>7} {'first ms':>9} {'last ms':>8} {'KiB':>6}")
        for path in PAGES:
            cold, warm = list[Cost](), list[Cost]()
            for _ in range(given.rounds):
                time.sleep(SNAPSHOT_AGE_S + 0.1)
                cold.append(read(broker, path))
                warm.append(read(broker, path))
            middle = [statistics.median(values) for values in zip(*cold, strict=True)]
            again = statistics.median(each.cpu_s for each in warm)
            print(
                f"{path:28} {middle[0]:7.3f} {middle[1]:7.3f} {again:7.3f} {middle[2]:9.0f} {middle[3]:8.0f} "
                f"{middle[4] / 1024:6.0f}"
            )


if __name__ == "__main__":
    main()
