"""Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeProducers, DescribeLogDirs."""

from differential.good import fetch_request, list_offsets_request, produce_request
from differential.good_admin import delete_records_request, log_dirs_request
from differential.table import case
from differential.talk import NO_ID, T0, Talk, Topic, batch
from millstream.wire.messages.delete_records import DeleteRecordsRequest
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from millstream.wire.messages.describe_producers import DescribeProducersRequest, DescribeProducersTopic
from millstream.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

EDGES = [4, 5, 7, 11, 12, 13, 15, 17, 18]
SESSIONS = [7, 11, 12, 13, 15, 18]
MIB = 1 << 20


def fetch(t: Talk, parts: dict[Topic, list[FetchPartition]], **fields: object) -> FetchRequest:
    """Several partitions; options are fields of the request."""
    topics = [FetchTopic(topic.name, topic.id, wanted) for topic, wanted in parts.items()]
    return FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 * MIB, "topics": topics, **fields})


def part(index: int, offset: int = 0, max_bytes: int = MIB, epoch: int = -1, fetched: int = -1) -> FetchPartition:
    return FetchPartition(index, epoch, offset, fetched, -1, max_bytes)


# Fetch

for _offset in (0, 1, 3, 4, 6, 7, 8, -1, -2, 2**62):

    @case(f"offset {_offset} of two batches", FetchRequest)
    def _(t: Talk, offset: int = _offset) -> None:
        t.ask(fetch_request(t.filled(3, 4), offset))


@case("an empty partition", FetchRequest)
def _(t: Talk) -> None:
    t.ask(fetch_request(t.topic(), 0))
    t.ask(fetch_request(t.topic("b"), 1))


for _index in (1, -1, 2**31 - 1):

    @case(f"partition {_index} of one", FetchRequest, EDGES)
    def _(t: Talk, index: int = _index) -> None:
        t.ask(fetch_request(t.topic(), 0, partition=index))


@case("a topic that is not there", FetchRequest)
def _(t: Talk) -> None:
    t.ask(fetch_request(Topic(t.name("none"), b"\7" * 16), 0))


@case("a topic without a name and with the zero id", FetchRequest)
def _(t: Talk) -> None:
    t.ask(fetch_request(Topic("", NO_ID), 0))


@case("no topics", FetchRequest)
def _(t: Talk) -> None:
    t.ask(fetch(t, {}))


@case("no partitions", FetchRequest, EDGES)
def _(t: Talk) -> None:
    t.ask(fetch(t, {t.topic(): []}))


@case("a partition twice", FetchRequest, EDGES)
def _(t: Talk) -> None:
    t.ask(fetch(t, {t.filled(3, 4): [part(0, 0), part(0, 3)]}))


@case("several topics, some of them wrong", FetchRequest)
def _(t: Talk) -> None:
    one, two = t.filled(3, label="a", partitions=2), t.filled(2, label="b")
    none = Topic(t.name("none"), b"\7" * 16)
    t.ask(fetch(t, {one: [part(0), part(1, 99), part(5)], two: [part(0, 1)], none: [part(0)]}))


for _limit in (0, 1, 100, -1):

    @case(f"max bytes of {_limit} for the partition", FetchRequest, EDGES)
    def _(t: Talk, limit: int = _limit) -> None:
        t.ask(fetch(t, {t.filled(3, 4, 5): [part(0, 0, limit)]}))

    @case(f"max bytes of {_limit} for the request", FetchRequest, EDGES)
    def _(t: Talk, limit: int = _limit) -> None:
        t.ask(fetch(t, {t.filled(3, 4, 5): [part(0)]}, max_bytes=limit))


@case("max bytes that end in the second batch", FetchRequest, EDGES)
def _(t: Talk) -> None:
    t.ask(fetch(t, {t.filled(3, 4, 5): [part(0, 0, 200)]}))


@case("min bytes that are never there", FetchRequest, EDGES)
def _(t: Talk) -> None:
    t.ask(fetch(t, {t.filled(3): [part(0)]}, min_bytes=MIB, max_wait_ms=50))


for _what, _fields in {
    "a negative max wait": {"max_wait_ms": -1},
    "negative min bytes": {"min_bytes": -1},
    "isolation level 1": {"isolation_level": 1},
    "isolation level 2": {"isolation_level": 2},
    "isolation level -1": {"isolation_level": -1},
    "replica id -2": {"replica_id": -2, "replica_state": ReplicaState(-2)},
    "replica id 9": {"replica_id": 9, "replica_state": ReplicaState(9)},
    "a rack": {"rack_id": "rack-9"},
    "another cluster's id": {"cluster_id": "someone-else"},
}.items():

    @case(_what, FetchRequest, EDGES)
    def _(t: Talk, fields: dict[str, object] = _fields) -> None:
        t.ask(fetch(t, {t.filled(3): [part(0)]}, **fields))


for _epoch in (0, 1, 99, -2):

    @case(f"current leader epoch {_epoch}", FetchRequest, [9, 11, 12, 15, 17])
    def _(t: Talk, epoch: int = _epoch) -> None:
        t.ask(fetch(t, {t.filled(3): [part(0, epoch=epoch)]}))

    @case(f"last fetched epoch {_epoch}", FetchRequest, [12, 15, 17])
    def _(t: Talk, epoch: int = _epoch) -> None:
        t.ask(fetch(t, {t.filled(3): [part(0, 2, fetched=epoch)]}))


@case("an offset below the log start", FetchRequest, EDGES)
def _(t: Talk) -> None:
    topic = t.filled(3, 4)
    t.quiet(delete_records_request(topic.name, 4))
    for offset in (0, 3, 4, 6):
        t.ask(fetch_request(topic, offset))


# Sessions


def session(t: Talk, answer: object) -> dict[str, int]:
    return {"session_id": getattr(answer, "session_id", 0)}


@case("a session that goes on", FetchRequest, SESSIONS)
def _(t: Talk) -> None:
    topic = t.filled(3, partitions=2)
    first = t.ask(fetch(t, {topic: [part(0), part(1)]}, session_epoch=0))
    t.ask(fetch(t, {}, **session(t, first), session_epoch=1))
    t.ask(fetch(t, {topic: [part(0, 3), part(1, 3)]}, **session(t, first), session_epoch=2))
    t.produce(topic, 1, 2, first=3)
    t.ask(fetch(t, {}, **session(t, first), session_epoch=3))
    t.ask(fetch(t, {}, **session(t, first), session_epoch=3))
    t.ask(fetch(t, {}, **session(t, first), session_epoch=9))


@case("a session that forgets and adds", FetchRequest, SESSIONS)
def _(t: Talk) -> None:
    topic, other = t.filled(3, partitions=2), t.filled(2, label="b")
    first = t.ask(fetch(t, {topic: [part(0), part(1)]}, session_epoch=0))
    forget = [ForgottenTopic(topic.name, topic.id, [0])]
    t.ask(fetch(t, {other: [part(0)]}, **session(t, first), session_epoch=1, forgotten_topics_data=forget))
    t.ask(fetch(t, {}, **session(t, first), session_epoch=2))
    t.ask(fetch(t, {topic: [part(0)]}, **session(t, first), session_epoch=-1))
    t.ask(fetch(t, {}, **session(t, first), session_epoch=3))


@case("a session that is not there", FetchRequest, SESSIONS)
def _(t: Talk) -> None:
    t.ask(fetch(t, {t.topic(): [part(0)]}, session_id=12345, session_epoch=1))


@case("a session closed by a full fetch", FetchRequest, SESSIONS)
def _(t: Talk) -> None:
    topic = t.filled(3)
    first = t.ask(fetch(t, {topic: [part(0)]}, session_epoch=0))
    t.ask(fetch(t, {topic: [part(0)]}, **session(t, first), session_epoch=0))
    t.ask(fetch(t, {}, **session(t, first), session_epoch=1))


@case("a session without topics", FetchRequest, SESSIONS)
def _(t: Talk) -> None:
    t.ask(fetch(t, {}, session_epoch=0))


@case("a session with a topic that is not there", FetchRequest, SESSIONS)
def _(t: Talk) -> None:
    topic, none = t.filled(3), Topic(t.name("none"), b"\7" * 16)
    first = t.ask(fetch(t, {topic: [part(0)], none: [part(0)]}, session_epoch=0))
    t.ask(fetch(t, {}, **session(t, first), session_epoch=1))


# ListOffsets

for _what, _timestamp in {
    "latest": -1,
    "earliest": -2,
    "largest timestamp": -3,
    "earliest local": -4,
    "latest tiered": -5,
    "earliest pending upload": -6,
    "-7": -7,
    "-100": -100,
    "0": 0,
    "the first": T0,
    "between": T0 + 4,
    "the last": T0 + 6,
    "the future": T0 + 7,
    "the end of time": 2**63 - 1,
}.items():

    @case(f"timestamp {_what}", ListOffsetsRequest)
    def _(t: Talk, timestamp: int = _timestamp) -> None:
        t.ask(list_offsets_request(t.filled(3, 4).name, timestamp))

    @case(f"timestamp {_what} of an empty partition", ListOffsetsRequest, [1, 4, 7, 8, 9, 11])
    def _(t: Talk, timestamp: int = _timestamp) -> None:
        t.ask(list_offsets_request(t.topic().name, timestamp))


@case("a partition twice", ListOffsetsRequest)
def _(t: Talk) -> None:
    t.ask(list_offsets_request(t.filled(3).name, -1, -2))


@case("what is not there", ListOffsetsRequest)
def _(t: Talk) -> None:
    parts = [ListOffsetsPartition(0, -1, -1), ListOffsetsPartition(7, -1, -1), ListOffsetsPartition(-1, -1, -1)]
    topics = [ListOffsetsTopic(t.filled(3).name, parts), ListOffsetsTopic(t.name("none"), parts[:1])]
    t.ask(ListOffsetsRequest(-1, 0, topics))


@case("no topics", ListOffsetsRequest)
def _(t: Talk) -> None:
    t.ask(ListOffsetsRequest(-1, 0, []))


for _epoch in (0, 1, 99, -2):

    @case(f"current leader epoch {_epoch}", ListOffsetsRequest, [4, 7, 11])
    def _(t: Talk, epoch: int = _epoch) -> None:
        topic = ListOffsetsTopic(t.filled(3).name, [ListOffsetsPartition(0, epoch, -1)])
        t.ask(ListOffsetsRequest(-1, 0, [topic]))


for _level in (1, 2, -1):

    @case(f"isolation level {_level}", ListOffsetsRequest, [2, 5, 11])
    def _(t: Talk, level: int = _level) -> None:
        t.ask(list_offsets_request(t.filled(3).name, -1, isolation=level))


for _replica in (-2, 9):

    @case(f"replica id {_replica}", ListOffsetsRequest, [1, 5, 11])
    def _(t: Talk, replica: int = _replica) -> None:
        topic = ListOffsetsTopic(t.filled(3).name, [ListOffsetsPartition(0, -1, -1)])
        t.ask(ListOffsetsRequest(replica, 0, [topic]))


@case("timestamps that go back", ListOffsetsRequest, [1, 7, 11])
def _(t: Talk) -> None:
    topic = t.topic()
    for first in (10, 0, 20):
        t.produce(topic, 0, 2, first=first)
    for timestamp in (-3, T0, T0 + 5, T0 + 10, T0 + 12):
        t.ask(list_offsets_request(topic.name, timestamp))


@case("behind deleted records", ListOffsetsRequest)
def _(t: Talk) -> None:
    topic = t.filled(3, 4)
    t.quiet(delete_records_request(topic.name, 4))
    for timestamp in (-1, -2, -3, T0):
        t.ask(list_offsets_request(topic.name, timestamp))


# OffsetForLeaderEpoch


def epochs(t: Talk, *asked: tuple[str, int, int, int], replica: int = -1) -> None:
    topics = [OffsetForLeaderTopic(name, [OffsetForLeaderPartition(i, now, wanted)]) for name, i, now, wanted in asked]
    t.ask(OffsetForLeaderEpochRequest(replica, topics))


for _now, _wanted in ((-1, 0), (-1, 1), (-1, 99), (-1, -1), (-1, -2), (0, 0), (1, 0), (99, 0), (-2, 0)):

    @case(f"epoch {_wanted} at {_now}", OffsetForLeaderEpochRequest)
    def _(t: Talk, now: int = _now, wanted: int = _wanted) -> None:
        epochs(t, (t.filled(3).name, 0, now, wanted))

    @case(f"epoch {_wanted} at {_now} of an empty partition", OffsetForLeaderEpochRequest)
    def _(t: Talk, now: int = _now, wanted: int = _wanted) -> None:
        epochs(t, (t.topic().name, 0, now, wanted))


@case("what is not there", OffsetForLeaderEpochRequest)
def _(t: Talk) -> None:
    name = t.topic().name
    epochs(t, (name, 0, -1, 0), (name, 7, -1, 0), (t.name("none"), 0, -1, 0))


@case("no topics", OffsetForLeaderEpochRequest)
def _(t: Talk) -> None:
    epochs(t)


for _replica in (-2, 9):

    @case(f"replica id {_replica}", OffsetForLeaderEpochRequest)
    def _(t: Talk, replica: int = _replica) -> None:
        epochs(t, (t.filled(3).name, 0, -1, 0), replica=replica)


# DeleteRecords

for _offset in (0, 1, 3, 4, 7, 8, -1, -2, 2**62):

    @case(f"up to offset {_offset}", DeleteRecordsRequest)
    def _(t: Talk, offset: int = _offset) -> None:
        topic = t.filled(3, 4)
        t.ask(delete_records_request(topic.name, offset))
        t.look(list_offsets_request(topic.name, -2))
        t.look(fetch_request(topic, 0))
        t.look(fetch_request(topic, 4))


@case("an earlier offset than before", DeleteRecordsRequest)
def _(t: Talk) -> None:
    topic = t.filled(3, 4)
    for offset in (4, 2, 4, 7):
        t.ask(delete_records_request(topic.name, offset))


@case("of an empty partition", DeleteRecordsRequest)
def _(t: Talk) -> None:
    name = t.topic().name
    for offset in (0, -1, 1):
        t.ask(delete_records_request(name, offset))


@case("of what is not there", DeleteRecordsRequest)
def _(t: Talk) -> None:
    t.ask(delete_records_request(t.filled(3).name, 1, 1))
    t.ask(delete_records_request(t.name("none"), 1))
    t.ask(DeleteRecordsRequest([], 1000))


@case("of a compacted topic", DeleteRecordsRequest)
def _(t: Talk) -> None:
    t.ask(delete_records_request(t.filled(3, cleanup_policy="compact").name, 1))


@case("of a topic that is compacted and deleted from", DeleteRecordsRequest)
def _(t: Talk) -> None:
    t.ask(delete_records_request(t.filled(3, cleanup_policy="compact,delete").name, 1))


@case("of the internal topic", DeleteRecordsRequest)
def _(t: Talk) -> None:
    answer = t.quiet(delete_records_request("__consumer_offsets", 0))
    t.note("errors", [one.error_code for one in answer.topics[0].partitions])


@case("and written to again", DeleteRecordsRequest)
def _(t: Talk) -> None:
    topic = t.filled(3, 4)
    t.ask(delete_records_request(topic.name, -1))
    t.look(produce_request(topic, batch(2, first=7)), 12)
    t.look(fetch_request(topic, 7))


# DescribeProducers, DescribeLogDirs, DescribeTopicPartitions


@case("producers of a partition", DescribeProducersRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    producer = t.quiet(InitProducerIdRequest(None)).producer_id
    t.produce(topic, 0, 2, producer_id=producer, producer_epoch=0, base_sequence=0)
    t.ask(DescribeProducersRequest([DescribeProducersTopic(topic.name, [0])]))


@case("producers of what is not there", DescribeProducersRequest)
def _(t: Talk) -> None:
    name = t.topic().name
    t.ask(
        DescribeProducersRequest([DescribeProducersTopic(name, [5, -1]), DescribeProducersTopic(t.name("none"), [0])])
    )
    t.ask(DescribeProducersRequest([DescribeProducersTopic("a b", [0]), DescribeProducersTopic(name, [])]))


@case("topics with records and what is not there", DescribeLogDirsRequest)
def _(t: Talk) -> None:
    t.ask(log_dirs_request(t.filled(3), t.topic("b"), Topic(t.name("none"), NO_ID)))


@case("no topics", DescribeLogDirsRequest)
def _(t: Talk) -> None:
    t.ask(DescribeLogDirsRequest([]))


@case("topics, some of them not there", DescribeTopicPartitionsRequest)
def _(t: Talk) -> None:
    names = [t.topic("a", 3).name, t.name("none"), t.topic("b").name, "a b"]
    t.ask(DescribeTopicPartitionsRequest([TopicRequest(name) for name in names]))


@case("page by page", DescribeTopicPartitionsRequest)
def _(t: Talk) -> None:
    names = [t.topic("a", 3).name, t.topic("b", 2).name]
    cursor = None
    for _ in range(4):
        answer = t.ask(DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], 2, cursor))
        if answer is None or answer.next_cursor is None:
            break
        cursor = Cursor(answer.next_cursor.topic_name, answer.next_cursor.partition_index)


@case("odd limits and cursors", DescribeTopicPartitionsRequest)
def _(t: Talk) -> None:
    name = t.topic("a", 3).name
    for limit in (0, -1, 1):
        t.ask(DescribeTopicPartitionsRequest([TopicRequest(name)], limit))
    for cursor in (Cursor(name, -1), Cursor(name, 9), Cursor(t.name("none"), 0), Cursor(t.name("z"), 0)):
        t.ask(DescribeTopicPartitionsRequest([TopicRequest(name)], 100, cursor))


@case("a topic twice", DescribeTopicPartitionsRequest)
def _(t: Talk) -> None:
    name = t.topic().name
    t.ask(DescribeTopicPartitionsRequest([TopicRequest(name), TopicRequest(name)]))
