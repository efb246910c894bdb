"""Produce: what is appended, what is refused, and what a fetch then shows."""

import struct
from collections.abc import Callable

from differential.good import fetch_request, list_offsets_request
from differential.table import case
from differential.talk import NO_ID, T0, Talk, Topic, batch, produce_request
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.records import build_batch, checksum

EDGES = [3, 5, 8, 9, 12, 13]
UNKNOWN = Topic("no-such-topic-here", b"\7" * 16)


def append(t: Talk, topic: Topic, records: bytes | None, partition: int = 0, **options: int) -> None:
    """Produces at the version under test, then shows the partition."""
    t.ask(produce_request(topic, records, partition, **options))
    t.look(fetch_request(topic, 0, partition=partition), 17)


def changed(data: bytes, at: int, form: str, value: int, *, sum_again: bool = True) -> bytes:
    """A batch with one field of its header changed."""
    out = bytearray(data)
    struct.pack_into(form, out, at, value)
    if sum_again:
        struct.pack_into(">I", out, 17, checksum([memoryview(out)]))
    return bytes(out)


def odd_batch(what: str, make: Callable[[], bytes | None], versions: list[int] = EDGES) -> None:
    @case(f"a batch {what}", ProduceRequest, versions)
    def script(t: Talk) -> None:
        append(t, t.topic(), make())


for _acks in (-1, 1):

    @case(f"two batches one after the other with acks {_acks}", ProduceRequest)
    def _(t: Talk, acks: int = _acks) -> None:
        topic = t.topic("a", 2)
        append(t, topic, batch(3), 1, acks=acks)
        append(t, topic, batch(2, first=3), 1, acks=acks)


for _acks in (2, -2, 32767):

    @case(f"acks {_acks}", ProduceRequest)
    def _(t: Talk, acks: int = _acks) -> None:
        append(t, t.topic(), batch(), acks=acks)


@case("acks 0", ProduceRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    t.unanswered(produce_request(topic, batch(2), acks=0))
    t.until(list_offsets_request(topic.name, -1), lambda answer: answer.topics[0].partitions[0].offset == 2)
    t.look(fetch_request(topic, 0), 17)


@case("acks 0 that is refused", ProduceRequest)
def _(t: Talk) -> None:
    t.unanswered(produce_request(t.topic(), batch(), 7, acks=0))


@case("a topic that is not there", ProduceRequest)
def _(t: Talk) -> None:
    t.ask(produce_request(Topic(t.name("none"), b"\7" * 16), batch()))


for _partition in (1, -1, 2**31 - 1):

    @case(f"partition {_partition} of one", ProduceRequest)
    def _(t: Talk, partition: int = _partition) -> None:
        t.ask(produce_request(t.topic(), batch(), partition))


@case("the zero id", ProduceRequest, [13])
def _(t: Talk) -> None:
    t.ask(produce_request(Topic("", NO_ID), batch()))


@case("no topics", ProduceRequest)
def _(t: Talk) -> None:
    t.ask(ProduceRequest(None, -1, 1000, []))


@case("no partitions", ProduceRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    t.ask(ProduceRequest(None, -1, 1000, [TopicProduceData(topic.name, topic.id, [])]))


@case("a partition twice", ProduceRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    parts = [PartitionProduceData(0, batch(1)), PartitionProduceData(0, batch(2, first=1))]
    t.ask(ProduceRequest(None, -1, 10_000, [TopicProduceData(topic.name, topic.id, parts)]))


@case("a topic twice", ProduceRequest)
def _(t: Talk) -> None:
    topic = t.topic("a", 2)
    data = [TopicProduceData(topic.name, topic.id, [PartitionProduceData(i, batch(1 + i))]) for i in (0, 1)]
    t.ask(ProduceRequest(None, -1, 10_000, data))


@case("many partitions, some of them wrong", ProduceRequest)
def _(t: Talk) -> None:
    one, two = t.topic("a", 3), t.topic("b")
    wrong = changed(batch(), 17, ">I", 1, sum_again=False)
    parts = [(0, batch(1)), (1, wrong), (2, batch(3)), (5, batch(1))]
    data = [
        TopicProduceData(one.name, one.id, [PartitionProduceData(index, records) for index, records in parts]),
        TopicProduceData(two.name, two.id, [PartitionProduceData(0, batch(2))]),
        TopicProduceData(UNKNOWN.name, UNKNOWN.id, [PartitionProduceData(0, batch(1))]),
    ]
    t.ask(ProduceRequest(None, -1, 10_000, data))
    t.look(list_offsets_request(one.name, -1))


@case("a transactional id and plain records", ProduceRequest, EDGES)
def _(t: Talk) -> None:
    topic = t.topic()
    data = [TopicProduceData(topic.name, topic.id, [PartitionProduceData(0, batch())])]
    t.ask(ProduceRequest(t.name("tx"), -1, 10_000, data))


@case("a timeout of -1", ProduceRequest, EDGES)
def _(t: Talk) -> None:
    append(t, t.topic(), batch(), timeout_ms=-1)


@case("a timeout of 0", ProduceRequest, EDGES)
def _(t: Talk) -> None:
    append(t, t.topic(), batch(), timeout_ms=0)


for _codec, _name in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
    odd_batch(f"compressed with {_name}", lambda codec=_codec: batch(20, compression=codec))

odd_batch("of nothing", lambda: b"")
odd_batch("that is null", lambda: None)
odd_batch("cut in its header", lambda: batch()[:30])
odd_batch("cut by a byte", lambda: batch()[:-1])
odd_batch("with a byte behind it", lambda: batch() + b"\0")
odd_batch("and a second one", lambda: batch(1) + batch(1, first=1))
odd_batch("with a wrong checksum", lambda: changed(batch(), 17, ">I", 1, sum_again=False))
odd_batch("with a length below its header", lambda: changed(batch(), 8, ">i", 5, sum_again=False))
odd_batch("with a negative length", lambda: changed(batch(), 8, ">i", -1, sum_again=False))
odd_batch("with a length past its end", lambda: changed(batch(), 8, ">i", 500, sum_again=False))
for _magic in (0, 1, 3, -1):
    odd_batch(f"of magic {_magic}", lambda magic=_magic: changed(batch(), 16, ">b", magic))
odd_batch("that counts no records", lambda: changed(batch(), 57, ">i", 0))
odd_batch("that counts -1 records", lambda: changed(batch(), 57, ">i", -1))
odd_batch("that counts fewer records than it has", lambda: changed(batch(3), 57, ">i", 2))
odd_batch("that counts more records than it has", lambda: changed(changed(batch(), 57, ">i", 9), 23, ">i", 8))
odd_batch("whose last offset delta is too large", lambda: changed(batch(2), 23, ">i", 5))
odd_batch("whose last offset delta is negative", lambda: changed(batch(2), 23, ">i", -1))
odd_batch("of codec 5", lambda: changed(batch(), 21, ">h", 5))
odd_batch("of codec 7", lambda: changed(batch(), 21, ">h", 7))
odd_batch("that claims gzip and is plain", lambda: changed(batch(), 21, ">h", 1))
odd_batch("that is a control batch", lambda: batch(control=True))
odd_batch("that is transactional", lambda: batch(transactional=True, producer_id=5, producer_epoch=0, base_sequence=0))
odd_batch("with attributes from the future", lambda: changed(batch(), 21, ">h", 0x4000))
odd_batch("with the LogAppendTime bit", lambda: changed(batch(), 21, ">h", 8))
odd_batch("with a base offset", lambda: changed(batch(), 0, ">q", 1234, sum_again=False))
odd_batch("with a leader epoch", lambda: changed(batch(), 12, ">i", 77, sum_again=False))
odd_batch("of a timestamp of -1", lambda: build_batch([(b"k", b"v", [], -1)]))
odd_batch("of a timestamp of -2", lambda: build_batch([(b"k", b"v", [], -2)]))
odd_batch("of a timestamp of 0", lambda: build_batch([(b"k", b"v", [], 0)]))
odd_batch("whose timestamps go back", lambda: build_batch([(b"k", b"v", [], T0 - i) for i in range(3)]))
odd_batch("whose maximum timestamp is a lie", lambda: changed(batch(2), 35, ">q", T0 + 999))
odd_batch("of a null key and a null value", lambda: build_batch([(None, None, [], T0)]))
odd_batch("with headers", lambda: build_batch([(b"k", b"v", [("h", b"1"), ("h", None), ("", b"")], T0)]))
odd_batch("of a megabyte too many", lambda: batch(1, value=bytes(1_100_000)), [3, 8, 13])
odd_batch("with bytes behind its records", lambda: _padded())


def _padded() -> bytes:
    """A batch with three bytes behind its last record, and a length and checksum that cover them."""
    data = batch() + b"\0\0\0"
    return changed(changed(data, 8, ">i", len(data) - 12), 8, ">i", len(data) - 12)


for _size in (0, 70, 100, 1000):

    @case(f"max.message.bytes of {_size}", ProduceRequest, [3, 8, 13])
    def _(t: Talk, size: int = _size) -> None:
        topic = t.topic(max_message_bytes=size)
        append(t, topic, batch(1))
        append(t, topic, batch(40))


@case("timestamps too old and too new", ProduceRequest, [3, 8, 13])
def _(t: Talk) -> None:
    topic = t.topic(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    append(t, topic, batch())
    append(t, topic, build_batch([(b"k", b"v", [], 9_000_000_000_000)]))


@case("LogAppendTime", ProduceRequest)
def _(t: Talk) -> None:
    topic = t.topic(message_timestamp_type="LogAppendTime")
    append(t, topic, batch(2))
    append(t, topic, batch(2, compression=1))


for _codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"):

    @case(f"compression.type {_codec}", ProduceRequest, [3, 13])
    def _(t: Talk, codec: str = _codec) -> None:
        topic = t.topic(compression_type=codec)
        append(t, topic, batch(10))
        append(t, topic, batch(10, compression=1))
        append(t, topic, batch(10, compression=4))


@case("min.insync.replicas of two", ProduceRequest, [3, 13])
def _(t: Talk) -> None:
    topic = t.topic(min_insync_replicas=2)
    append(t, topic, batch(), acks=-1)
    append(t, topic, batch(), acks=1)


@case("a compacted topic", ProduceRequest, [3, 8, 13])
def _(t: Talk) -> None:
    topic = t.topic(cleanup_policy="compact")
    append(t, topic, batch(2))
    append(t, topic, batch(2, key=None))
    append(t, topic, build_batch([(b"k", b"v", [], T0), (None, b"v", [], T0)]))


# Idempotent producers


def sequence(t: Talk, *steps: tuple[int, int, int]) -> None:
    """Batches of one producer: (epoch, sequence, count), each answered, then what is stored."""
    topic = t.topic()
    producer = t.quiet(InitProducerIdRequest(None)).producer_id
    for epoch, base, count in steps:
        t.ask(
            produce_request(
                topic, batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=base, first=base)
            )
        )
    t.look(fetch_request(topic, 0), 17)


for _what, _steps in {
    "in sequence": [(0, 0, 2), (0, 2, 3)],
    "that repeats its last batch": [(0, 0, 2), (0, 0, 2)],
    "that repeats an older batch": [(0, i, 1) for i in (0, 1, 2, 1)],
    "that repeats a batch beyond the window": [(0, i, 1) for i in (0, 1, 2, 3, 4, 5, 6, 0)],
    "that repeats a batch with another count": [(0, 0, 2), (0, 0, 3)],
    "that leaves a gap": [(0, 0, 1), (0, 5, 1)],
    "that begins in the middle": [(0, 5, 1)],
    "that begins in the middle with a later epoch": [(3, 5, 1)],
    "that raises its epoch": [(0, 0, 1), (1, 0, 1)],
    "that raises its epoch and does not begin again": [(0, 0, 1), (1, 1, 1)],
    "that goes back an epoch": [(1, 0, 1), (0, 0, 1)],
    "of a sequence that wraps": [(0, 2**31 - 1, 1), (0, 0, 1)],
}.items():

    @case(f"a producer {_what}", ProduceRequest, [3, 8, 11, 13])
    def _(t: Talk, steps: list[tuple[int, int, int]] = _steps) -> None:
        sequence(t, *steps)


for _what, _fields in {
    "an epoch and no sequence": {"producer_id": 7, "producer_epoch": 0, "base_sequence": -1},
    "a sequence and no epoch": {"producer_id": 7, "producer_epoch": -1, "base_sequence": 0},
    "an id that nobody gave": {"producer_id": 1 << 40, "producer_epoch": 0, "base_sequence": 0},
    "no id and a sequence": {"producer_id": -1, "producer_epoch": 0, "base_sequence": 0},
    "an id below -1": {"producer_id": -7, "producer_epoch": 0, "base_sequence": 0},
}.items():
    odd_batch(f"of a producer with {_what}", lambda fields=_fields: batch(1, **fields))
