"""A share group beside Apache Kafka: CPU of the broker a record, and the time from produce to acknowledge.

    python -m bench.share [--rounds 3] [--brokers ours,kafka]

16 members of one group share 8 partitions. Each fetches, acknowledges everything it got with one ShareAcknowledge,
waits for its answer, and fetches again: fetches and acknowledgements are counted together. Two loads, in turn on each
broker:

- *drain*: partitions filled with batches of 500 records of 100 bytes are emptied as fast as the members can. What
  counts is the broker's CPU a record. Every record must be acknowledged exactly once, or there is no figure.
- *tail*: each partition gets a batch of 10 records every 100 ms. What counts is the time from the moment a batch
  was due until the answer to its acknowledgement (99th percentile), and how many records the broker wrote about it.

The first round of each warms up and is not shown. Figures are ratios of one run; members are threads of this process.
"""

import argparse
import contextlib
import itertools
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from bench import plain, raw
from bench.meter import Meter, Outcome, percentile
from bench.raw import UnexpectedAnswer
from bench.subjects import PEER, Subject, subject
from millstream.client.connection import Connection
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from millstream.wire.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from millstream.wire.messages.share_fetch import (
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
)
from millstream.wire.records import iter_batches, iter_records

PARTITIONS: Final = 8
MEMBERS: Final = 16
BATCH: Final = 500
BATCHES: Final = 60
"""In each partition, for a drain: 240,000 records in all."""
VALUE_BYTES: Final = 100
TAIL_S: Final = 15.0
TAIL_RECORDS: Final = 10
TAIL_EVERY_S: Final = 0.1
"""In each partition."""
ACCEPT: Final = 1
STATE_TOPIC: Final = "__share_group_state"

_groups = itertools.count()
_T = TypeVar("_T")


class Drained(NamedTuple):
    cpu_us: float
    """Of the broker, a record."""
    seconds: float


class Tailed(NamedTuple):
    p50_ms: float
    p99_ms: float
    cpu_us: float
    written: float
    """Records in the state topic, a ShareAcknowledge."""


class Member:
    """One member with its session."""

    def __init__(self, bootstrap: str, group: str, number: int, topic_id: bytes) -> None:
        self._connection = connection(bootstrap)
        self._group = group
        self._id = f"member-{number:029d}"
        self._topic_id = topic_id
        self._epoch = 0
        self.acknowledged: dict[int, list[tuple[int, int]]] = {}
        self.acknowledgements = 0

    def step(self, wait_ms: int, seen: Callable[[bytes], None] | None = None) -> int:
        """Fetches, and acknowledges what came; how many records. ``seen`` gets their batches once that is answered."""
        named = [ShareFetchPartition(index) for index in range(PARTITIONS)] if self._epoch == 0 else []
        request = ShareFetchRequest(
            self._group,
            self._id,
            self._epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=50 << 20,
            max_records=BATCH,
            batch_size=BATCH,
            topics=[ShareFetchTopic(self._topic_id, named)] if named else [],
        )
        answer = self._connection.call(request, ShareFetchResponse, 2)
        _insist(answer.error_code, "ShareFetch")
        self._epoch += 1
        parts = [one for topic in answer.responses for one in topic.partitions if one.acquired_records]
        if not parts:
            return 0
        batches = [bytes(memoryview(one.records)) for one in parts if isinstance(one.records, memoryview)]
        said = [
            AcknowledgePartition(
                one.partition_index,
                [AcknowledgementBatch(run.first_offset, run.last_offset, [ACCEPT]) for run in one.acquired_records],
            )
            for one in parts
        ]
        topics = [AcknowledgeTopic(self._topic_id, said)]
        done = self._connection.call(
            ShareAcknowledgeRequest(self._group, self._id, self._epoch, topics=topics), ShareAcknowledgeResponse, 2
        )
        _insist(done.error_code, "ShareAcknowledge")
        for topic in done.responses:
            for part in topic.partitions:
                _insist(part.error_code, f"ShareAcknowledge of partition {part.partition_index}")
        self._epoch += 1
        self.acknowledgements += 1
        count = 0
        for one in parts:
            for run in one.acquired_records:
                self.acknowledged.setdefault(one.partition_index, []).append((run.first_offset, run.last_offset))
                count += run.last_offset - run.first_offset + 1
        if seen is not None:
            for each in batches:
                seen(each)
        return count

    def close(self) -> None:
        self._connection.close()


def connection(bootstrap: str) -> Connection:
    host, _, port = bootstrap.rpartition(":")
    return Connection(host, int(port), client_id="bench", timeout_s=60.0)


def _insist(error: int, what: str) -> None:
    if error:
        raise UnexpectedAnswer(f"{what}: error {error}")


def start_group(bootstrap: str, topic: str) -> tuple[str, bytes]:
    """A new group at the start of a topic; its name, and the topic's id."""
    group = f"bench-share-{next(_groups)}"
    starts = [AlterShareOffsetsPartition(index, 0) for index in range(PARTITIONS)]
    request = AlterShareGroupOffsetsRequest(group, [AlterShareOffsetsTopic(topic, starts)])
    until = time.monotonic() + 60
    with connection(bootstrap) as line:
        (about,) = line.call(MetadataRequest([MetadataRequestTopic(name=topic)]), MetadataResponse, 12).topics
        while True:
            line.call(FindCoordinatorRequest(coordinator_keys=[group]), FindCoordinatorResponse, 4)
            answer = line.call(request, AlterShareGroupOffsetsResponse, 0)
            errors = {answer.error_code, *(one.error_code for each in answer.responses for one in each.partitions)}
            if errors == {0}:
                return group, about.topic_id
            if time.monotonic() > until:
                raise UnexpectedAnswer(f"AlterShareGroupOffsets: errors {errors}")
            time.sleep(0.1)


def state_records(bootstrap: str) -> int:
    """Records that were ever written to the state topic."""
    with connection(bootstrap) as line:
        asked = MetadataRequest([MetadataRequestTopic(name=STATE_TOPIC)])
        (about,) = line.call(asked, MetadataResponse, 12).topics
        parts = [ListOffsetsPartition(one.partition_index, -1, -1) for one in about.partitions]
        asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(STATE_TOPIC, parts)])
        return sum(one.offset for one in line.call(asked, ListOffsetsResponse, 7).topics[0].partitions)


def check(members: list[Member], ends: dict[int, int]) -> None:
    """Every record was acknowledged once."""
    for partition, end in ends.items():
        runs = sorted(run for one in members for run in one.acknowledged.get(partition, ()))
        at = 0
        for first, last in runs:
            if first != at:
                raise UnexpectedAnswer(f"partition {partition}: offset {at} expected, {first}-{last} was acknowledged")
            at = last + 1
        if at != end:
            raise UnexpectedAnswer(f"partition {partition}: {end} records, {at} were acknowledged")


@contextlib.contextmanager
def group_of(bootstrap: str, topic: str) -> Generator[tuple[list[Member], ThreadPoolExecutor]]:
    """Members of a new group whose sessions are open."""
    group, topic_id = start_group(bootstrap, topic)
    members = [Member(bootstrap, group, number, topic_id) for number in range(MEMBERS)]
    try:
        with ThreadPoolExecutor(MEMBERS) as pool:
            yield members, pool
    finally:
        for one in members:
            one.close()


def drain(at: Subject, topic: str) -> Drained:
    """Empties a filled topic with a new group."""
    total = PARTITIONS * BATCHES * BATCH
    done = 0
    lock = threading.Lock()
    outcome = Outcome()
    with group_of(at.bootstrap, topic) as (members, pool):

        def run(one: Member) -> None:
            nonlocal done
            while done < total:
                count = one.step(200)
                with lock:
                    done += count

        meter = Meter(at.pid)
        meter.begin()
        for each in [pool.submit(run, one) for one in members]:
            each.result()
        meter.end(outcome)
        check(members, dict.fromkeys(range(PARTITIONS), BATCHES * BATCH))
    return Drained(1e6 * outcome.broker_cpu_s / total, outcome.seconds)


def tail(at: Subject) -> Tailed:
    """Produces on a schedule, and reads and acknowledges at the tail. A record says when it was due."""
    latencies: list[float] = []
    outcome = Outcome()
    with plain.topic(at, PARTITIONS) as topic, group_of(at.bootstrap, topic) as (members, pool):
        for one in members:
            one.step(0)
        stop, done = threading.Event(), [0]
        lock = threading.Lock()
        ends = dict.fromkeys(range(PARTITIONS), 0)

        def seen(batches: bytes) -> None:
            now = time.perf_counter()
            for batch in iter_batches(memoryview(batches)):
                for record in iter_records(batch):
                    assert record.value is not None
                    latencies.append(now - struct.unpack_from(">d", record.value)[0])

        def run(one: Member) -> None:
            while not stop.is_set() or done[0] < sum(ends.values()):
                count = one.step(200, seen)
                with lock:
                    done[0] += count

        before = state_records(at.bootstrap)
        meter = Meter(at.pid)
        meter.begin()
        running = [pool.submit(run, one) for one in members]
        began = time.perf_counter()

        def produce(partition: int) -> None:
            with raw.Caller(at.bootstrap) as caller:
                for number in range(int(TAIL_S / TAIL_EVERY_S)):
                    due = began + (number + partition / PARTITIONS) * TAIL_EVERY_S
                    rest = due - time.perf_counter()
                    if rest > 0:
                        time.sleep(rest)
                    value = struct.pack(">d", due) + bytes(VALUE_BYTES - 8)
                    caller.produce_one(topic, partition, raw.batch([value] * TAIL_RECORDS))
                    ends[partition] += TAIL_RECORDS

        with ThreadPoolExecutor(PARTITIONS) as producers:
            list(producers.map(produce, range(PARTITIONS)))
        stop.set()
        for each in running:
            each.result()
        meter.end(outcome)
        written = state_records(at.bootstrap) - before
        check(members, ends)
        latencies.sort()
        said = sum(one.acknowledgements for one in members)
    return Tailed(
        1e3 * percentile(latencies, 50),
        1e3 * percentile(latencies, 99),
        1e6 * outcome.broker_cpu_s / len(latencies),
        written / said,
    )


def fill(at: Subject) -> str:
    """A topic for drains; its name."""
    name = plain.new_topic(at, PARTITIONS)
    with raw.Caller(at.bootstrap) as caller:
        for batch in raw.batches(BATCHES, BATCH, VALUE_BYTES):
            for partition in range(PARTITIONS):
                caller.produce_one(name, partition, batch)
    return name


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.share", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each broker, after the warm-up (default 3)")
    parser.add_argument("--brokers", default="ours,kafka", help="which, and in which order (default ours,kafka)")
    parser.add_argument("--load", default="drain,tail", help="drain, tail or both (default)")
    options = parser.parse_args()
    loads = options.load.split(",")
    drained: dict[str, list[Drained]] = {}
    tailed: dict[str, list[Tailed]] = {}
    with contextlib.ExitStack() as stack:
        brokers = [
            stack.enter_context(subject(name, None if name == PEER else 1)) for name in options.brokers.split(",")
        ]
        topics = {at.name: fill(at) for at in brokers}
        for number in range(options.rounds + 1):
            for at in brokers[:: -1 if number % 2 else 1]:
                say = f"round {number} {at.name:6}" + ("" if number else " (warm-up)")
                if "drain" in loads:
                    one = drain(at, topics[at.name])
                    print(f"{say} drain {one.cpu_us:6.2f} µs a record, {one.seconds:.1f} s", flush=True)
                    if number:
                        drained.setdefault(at.name, []).append(one)
                if "tail" in loads:
                    two = tail(at)
                    print(
                        f"{say} tail p50 {two.p50_ms:.1f} p99 {two.p99_ms:.1f} ms, {two.cpu_us:.1f} µs a record,"
                        f" {two.written:.2f} state records an acknowledgement",
                        flush=True,
                    )
                    if number:
                        tailed.setdefault(at.name, []).append(two)
    if {"ours", PEER} <= drained.keys():
        print(f"drain, CPU a record: {_ratio(drained, lambda one: one.cpu_us):.2f} × Kafka")
    if {"ours", PEER} <= tailed.keys():
        print(f"tail, CPU a record: {_ratio(tailed, lambda one: one.cpu_us):.2f} × Kafka")
        print(f"tail, p99 produce to acknowledge: {_ratio(tailed, lambda one: one.p99_ms):.2f} × Kafka")
    return 0


def _ratio(figures: dict[str, list[_T]], of: Callable[[_T], float]) -> float:
    """Median of ours by the median of Kafka's."""
    medians = [sorted(map(of, figures[name]))[len(figures[name]) // 2] for name in ("ours", PEER)]
    return medians[0] / medians[1]


if __name__ == "__main__":
    sys.exit(main())
