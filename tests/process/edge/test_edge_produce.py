"""What a client sees of Produce.

Raw requests to one real broker with two shards; every topic has a partition on each, so half of what is asked here
hops. ``pytest tests/process/edge --peer kafka`` asks a real Apache Kafka the same: a test that fails there is wrong,
unless its first line says how we differ.
"""

import struct
import time

import pytest
from edge_client import MIB, NO_ID, batch, frame, is_peer, metric, patched, raw_call, stored

from millstream.errors import Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from millstream.wire.records import batch_crc_ok, build_batch, iter_batches, iter_records, parse_header
from waits import until

pytestmark = pytest.mark.process


def hops(broker):
    """Messages that each shard received from the other."""
    return metric(broker, "millstream_ring_hops_total")


def test_a_topic_has_a_partition_on_each_shard(broker, client, request):
    """What the rest of this file counts on (and Kafka does not have)."""
    if is_peer(request.config):
        return
    topic, _ = client.create()
    before = hops(broker)
    for _ in range(50):
        assert [client.error(topic, partition, batch()) for partition in (0, 1)] == ["NONE", "NONE"]
    assert len(before) == 2
    assert all(after - once >= 50 for after, once in zip(hops(broker), before, strict=True))


@pytest.mark.parametrize("version", [3, 5, 8, 9, 12])
@pytest.mark.parametrize("acks", [1, -1])
def test_produce_answers_base_offset_and_log_start_in_every_version(client, version, acks):
    topic, _ = client.create()
    for partition in (0, 1):
        for base in (0, 3):
            answer = client.produce(topic, partition, batch(3), acks=acks, version=version)
            start = 0 if version >= 5 else -1
            got = (answer.index, answer.error_code, answer.base_offset, answer.log_append_time_ms)
            assert got == (partition, 0, base, -1)
            assert answer.log_start_offset == start
        assert client.end(topic, partition) == 6


def test_produce_by_topic_id(client):
    topic, topic_id = client.create()
    for partition in (0, 1):
        assert client.produce(topic_id, partition, batch(2), version=13).base_offset == 0
        assert client.end(topic, partition) == 2
    assert client.error(b"\7" * 16, 0, batch(), version=13) == "UNKNOWN_TOPIC_ID"
    assert client.error(topic_id, 2, batch(), version=13) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_acks_0_is_not_answered_and_a_refusal_closes_the_connection(client, other):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce_many({(topic, partition): batch(2)}, acks=0)
        assert client.produce(topic, partition, batch(1)).base_offset == 2  # and answers stay in step
    client.produce_many({(topic, 5): batch()}, acks=0)
    with pytest.raises(Unavailable):
        client.end(topic, 0)
    assert other.end(topic, 0) == 3


def test_acks_0_refused_on_the_other_shard_closes_the_connection_too(connect):
    for partition in (0, 1):
        client = connect()
        topic, _ = client.create()
        client.produce_many({(topic, partition): patched(batch(), 17, ">I", 1, sum_again=False)}, acks=0)
        with pytest.raises(Unavailable):
            while True:
                client.end(topic, 0)


def test_one_request_to_many_partitions_answers_each_on_its_own(client):
    topic, _ = client.create(4)
    other, _ = client.create()
    wanted = {
        (topic, 0): batch(1),
        (topic, 1): batch(2),
        (topic, 2): patched(batch(), 17, ">I", 1, sum_again=False),
        (topic, 3): batch(4),
        (other, 0): batch(5),
        (other, 9): batch(1),
        (other, 1): batch(6),
        ("no-such-topic", 0): batch(1),
    }
    answers = client.produce_many(wanted)
    refused = [ErrorCode(answer.error_code).name for answer in answers if answer.error_code]
    assert sorted(refused) == ["CORRUPT_MESSAGE", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert sorted(answer.index for answer in answers) == sorted(index for _, index in wanted)
    assert [client.end(topic, i) for i in range(4)] == [1, 2, 0, 4]
    assert [client.end(other, i) for i in range(2)] == [5, 6]


REFUSED = {
    "a checksum that does not hold": (lambda: patched(batch(), 17, ">I", 1, sum_again=False), "CORRUPT_MESSAGE"),
    "no batch": (lambda: b"", "INVALID_RECORD"),
    "no records field": (lambda: None, "INVALID_RECORD"),
    "half a header": (lambda: batch()[:30], "INVALID_RECORD"),
    "a batch cut short": (lambda: batch()[:-1], "INVALID_RECORD"),
    "two batches": (lambda: batch() + batch(), "INVALID_RECORD"),
    "a length below the header": (lambda: patched(batch(), 8, ">i", 5, sum_again=False), "CORRUPT_MESSAGE"),
    "magic 1": (lambda: patched(batch(), 16, ">b", 1), "INVALID_RECORD"),
    "magic 3": (lambda: patched(batch(), 16, ">b", 3), "CORRUPT_MESSAGE"),
    "no records": (lambda: patched(batch(), 57, ">i", 0), "INVALID_RECORD"),
    "a count beside the deltas": (lambda: patched(batch(3), 57, ">i", 2), "INVALID_RECORD"),
    "more records than bytes": (
        lambda: patched(patched(batch(), 57, ">i", 1000), 23, ">i", 999),
        "INVALID_RECORD",
    ),
    "a codec that does not exist": (lambda: patched(batch(), 21, ">h", 6), "INVALID_RECORD"),  # Kafka: a server error
    "a control batch": (lambda: batch(control=True), "INVALID_RECORD"),
    "a timestamp too far ahead": (
        lambda: batch(timestamp=int(time.time() * 1000) + 7_200_000),
        "INVALID_TIMESTAMP",
    ),
    "a batch beyond max.message.bytes": (lambda: batch(1, bytes(2 * MIB)), "MESSAGE_TOO_LARGE"),
    "a base offset": (lambda: patched(batch(), 0, ">q", 7, sum_again=False), "INVALID_RECORD"),
    "a batch of a transaction": (
        lambda: batch(producer_id=900, producer_epoch=0, base_sequence=0, transactional=True),
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ),
    "an idempotent batch without a sequence": (
        lambda: batch(producer_id=900, producer_epoch=0, base_sequence=-1),
        "INVALID_RECORD",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_batch_leaves_no_trace(client, what, request):
    """With Kafka 4.3.1's error, but for two: it has no answer for a missing field, and a server error for a codec."""
    make, error = REFUSED[what]
    if is_peer(request.config) and what in ("no records field", "a codec that does not exist"):
        return
    topic, _ = client.create()
    for partition in (0, 1):
        assert client.error(topic, partition, make()) == error
        assert client.produce(topic, partition, batch()).base_offset == 0


def test_log_append_time_is_in_the_answer_and_in_the_batch(client):
    topic, _ = client.create(message_timestamp_type="LogAppendTime")
    for partition in (0, 1):
        answer = client.produce(topic, partition, batch(2, timestamp=5))
        assert abs(answer.log_append_time_ms - time.time() * 1000) < 60_000
        part = client.fetch_one(topic, partition, 0)
        (stored,) = iter_batches(memoryview(bytes(part.records)))
        assert [record.timestamp for record in iter_records(stored)] == [answer.log_append_time_ms] * 2


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_batches_of_every_codec_are_stored_as_they_came(client, codec):
    topic, _ = client.create()
    one = batch(20, b"compressible " * 50, compression=codec)
    for partition in (0, 1):
        assert client.error(topic, partition, one) == "NONE"
        (got,) = stored(client, topic, partition, 20)
        assert got[16:] == one[16:]


def test_a_request_larger_than_a_fragment_reaches_both_shards(client):
    """It is received in pieces, whose parts are lent to the other shard."""
    topic, topic_id = client.create()
    values = {p: bytes([p + 1]) * 700_001 for p in (0, 1)}
    for version, name, base in ((9, topic, 0), (13, topic_id, 1)):
        wanted = {(name, p): batch(1, values[p]) for p in (0, 1)}
        answers = client.produce_many(wanted, version=version)
        assert sorted((part.index, part.error_code, part.base_offset) for part in answers) == [
            (0, 0, base),
            (1, 0, base),
        ]
    client.produce_many({(topic, p): batch(1, values[p]) for p in (0, 1)}, acks=0)
    damaged = {(topic, p): patched(batch(1, values[p]), 700_000, ">b", 9, sum_again=False) for p in (0, 1)}
    assert {part.error_code for part in client.produce_many(damaged)} == {ErrorCode.CORRUPT_MESSAGE}
    for p in (0, 1):
        got = [record.value for one in stored(client, topic, p, 3) for record in iter_records(memoryview(one))]
        assert [bytes(value) for value in got] == [values[p]] * 3


def test_acks_out_of_range_is_refused(client):
    topic, _ = client.create()
    assert client.error(topic, 0, batch(), acks=2) == "INVALID_REQUIRED_ACKS"
    assert client.error(topic, 1, batch(), acks=-2) == "INVALID_REQUIRED_ACKS"


def test_acks_all_counts_no_more_replicas_than_the_partition_has(client):
    """Measured on Kafka 4.3.1: with one replica, min.insync.replicas=2 refuses nothing."""
    topic, _ = client.create(min_insync_replicas=2)
    for partition in (0, 1):
        assert client.error(topic, partition, batch()) == "NONE"
        assert client.error(topic, partition, batch(), acks=1) == "NONE"


def test_zstd_needs_produce_version_7(client):
    topic, _ = client.create()
    for partition in (0, 1):
        compressed = batch(compression=4)
        assert client.error(topic, partition, compressed, version=6) == "UNSUPPORTED_COMPRESSION_TYPE"
        assert client.error(topic, partition, compressed, version=7) == "NONE"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_below_version_3_is_advertised_and_refused(broker, client, version, request):
    """Kafka 4.3.1 closes the connection; we say UNSUPPORTED_VERSION, which tells the client's user why."""
    assert client.connection.versions[0][0] == 0
    topic, _ = client.create()
    records = b"whatever a message set is"
    body = struct.pack(">hiih", -1, 1000, 1, len(topic)) + topic.encode()
    body += struct.pack(">iii", 1, 0, len(records)) + records
    answer = raw_call(broker, frame(0, version, body))
    if is_peer(request.config):
        return
    place = 4 + 4 + 2 + len(topic) + 4
    assert struct.unpack_from(">ihq", answer, place) == (0, ErrorCode.UNSUPPORTED_VERSION, -1)


def test_idempotent_sequences_hold_over_kill_9(broker, connect, request):
    """Kafka 4.3.1 knows only the last batch again after a restart, we the last five."""
    client = connect()
    topic, _ = client.create()
    answer = client.producer_id()
    assert (answer.error_code, answer.producer_epoch) == (0, 0)

    def numbered(sequence, count=2, epoch=0):
        return batch(count, producer_id=answer.producer_id, producer_epoch=epoch, base_sequence=sequence)

    for partition in (0, 1):
        assert [client.produce(topic, partition, numbered(s)).base_offset for s in (0, 2, 4)] == [0, 2, 4]
    for restarted in (False, True):
        if restarted:
            broker.kill()
            broker.restart()
            client = connect()
            client.until_served(topic, 0, 1)
        for partition in (0, 1):
            known = 4 if restarted and is_peer(request.config) else 2
            again = client.produce(topic, partition, numbered(known))
            assert (again.error_code, again.base_offset) == (0, known)
            assert client.error(topic, partition, numbered(8)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
            assert client.error(topic, partition, numbered(2, count=3)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
            assert client.end(topic, partition) == 6
    for partition in (0, 1):
        assert client.produce(topic, partition, numbered(6)).base_offset == 6
        assert client.error(topic, partition, numbered(5, epoch=1)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        assert client.produce(topic, partition, numbered(0, epoch=1)).base_offset == 8
        assert client.error(topic, partition, numbered(8)) == "INVALID_PRODUCER_EPOCH"
        assert client.end(topic, partition) == 10


# Batches whose records are looked at

CODEC_NAMES = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("target", CODEC_NAMES)
@pytest.mark.parametrize("time_type", ["CreateTime", "LogAppendTime"])
def test_a_topic_stores_batches_with_its_own_codec(client, target, time_type):
    topic, _ = client.create(compression_type=target, message_timestamp_type=time_type)
    for partition in (0, 1):
        sent = [batch(20, b"compressible " * 50, compression=codec) for codec in range(5)]
        for number, one in enumerate(sent):
            answer = client.produce(topic, partition, one)
            assert (answer.error_code, answer.base_offset) == (0, 20 * number)
            assert (answer.log_append_time_ms > 0) == (time_type == "LogAppendTime")
        for one, got in zip(sent, stored(client, topic, partition, 100), strict=True):
            header = parse_header(got)
            assert (header.codec, batch_crc_ok(got)) == (CODEC_NAMES.index(target), True)
            assert header.is_log_append_time == (time_type == "LogAppendTime")
            wanted = [(r.key, r.value, r.headers) for r in iter_records(one)]
            assert [(r.key, r.value, r.headers) for r in iter_records(got)] == wanted
            if time_type == "CreateTime":
                assert [r.timestamp for r in iter_records(got)] == [r.timestamp for r in iter_records(one)]


def test_batches_keep_their_order_while_some_are_compressed_anew(client):
    """An idempotent producer's sequence numbers would tell: large and small, of the topic's codec and of others."""
    topic, _ = client.create(compression_type="gzip")
    number = client.producer_id().producer_id
    for partition in (0, 1):
        sizes = [(i * 7919) % 60_000 for i in range(60)]
        for i, size in enumerate(sizes):
            numbered = {"producer_id": number, "producer_epoch": 0, "base_sequence": i}
            one = batch(1, b"%05d" % i + bytes(size), compression=(0, 1, 4)[i % 3], **numbered)
            data = [TopicProduceData(topic, NO_ID, [PartitionProduceData(partition, one)])]
            client.connection.send(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 9)
        for i in range(len(sizes)):
            part = client.connection.receive(ProduceResponse).responses[0].partition_responses[0]
            assert (part.error_code, part.base_offset) == (0, i)
        got = [record.value for one in stored(client, topic, partition, 60) for record in iter_records(one)]
        assert [int(value[:5]) for value in got] == list(range(60))
        again = {"producer_id": number, "producer_epoch": 0, "base_sequence": 57}
        assert client.produce(topic, partition, batch(1, **again)).base_offset == 57
        ahead = {"producer_id": number, "producer_epoch": 0, "base_sequence": 99}
        assert client.error(topic, partition, batch(1, **ahead)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_a_batch_that_outgrows_its_topic_is_refused_after_it_was_opened(client):
    topic, _ = client.create(compression_type="uncompressed", max_message_bytes=20_000)
    for partition in (0, 1):
        assert client.error(topic, partition, batch(1, bytes(25_000), compression=1)) == "MESSAGE_TOO_LARGE"
        assert client.error(topic, partition, batch(1, bytes(25_000))) == "MESSAGE_TOO_LARGE"
        assert client.produce(topic, partition, batch(1, bytes(15_000), compression=1)).base_offset == 0
        (got,) = stored(client, topic, partition, 1)
        assert len(got) > 15_000


def test_a_batch_larger_than_a_segment_is_refused(client):
    topic, _ = client.create(segment_bytes=MIB, max_message_bytes=3 * MIB)
    for partition in (0, 1):
        assert client.error(topic, partition, batch(1, bytes(2 * MIB))) == "RECORD_LIST_TOO_LARGE"


@pytest.mark.parametrize("codec", [0, 1])
def test_records_out_of_time_are_named_one_by_one(client, codec):
    bounds = {"message_timestamp_before_max_ms": 60_000, "message_timestamp_after_max_ms": 60_000}
    topic, _ = client.create(**bounds)
    now = int(time.time() * 1000)
    late = build_batch([(None, b"v", [], at) for at in (now, now - 600_000, -1, now + 600_000)], compression=codec)
    for partition in (0, 1):
        answer = client.produce(topic, partition, late)
        assert ErrorCode(answer.error_code).name == "INVALID_TIMESTAMP"
        assert [error.batch_index for error in answer.record_errors] == [1, 3]
        assert answer.error_message
        assert (answer.base_offset, answer.log_start_offset) == (-1, 0)
        assert client.produce(topic, partition, batch(2, compression=codec)).base_offset == 0


@pytest.mark.parametrize("codec", [0, 1])
def test_only_the_broker_sets_the_brokers_time(client, codec):
    topic, _ = client.create(message_timestamp_type="LogAppendTime")
    other, _ = client.create()
    claimed = batch(2, compression=codec, log_append_time=int(time.time() * 1000))
    for partition in (0, 1):
        assert client.error(topic, partition, claimed) == "INVALID_TIMESTAMP"
        assert client.error(other, partition, claimed) == "NONE"
        (got,) = stored(client, other, partition, 2)
        assert not parse_header(got).is_log_append_time and batch_crc_ok(got)


@pytest.mark.parametrize("codec", [0, 1])
def test_records_without_a_key_are_named_for_a_compacted_topic(client, codec):
    topic, _ = client.create(cleanup_policy="compact")
    records = [(key, b"v", [], int(time.time() * 1000)) for key in (b"k", None, b"", None)]
    for partition in (0, 1):
        answer = client.produce(topic, partition, build_batch(records, compression=codec))
        assert ErrorCode(answer.error_code).name == "INVALID_RECORD"
        assert [error.batch_index for error in answer.record_errors] == [1, 3]
        assert client.error(topic, partition, build_batch(records[:1] * 40, compression=codec)) == "NONE"
        assert client.error(topic, partition, build_batch(records[:1] * 3, compression=codec), version=7) == "NONE"


def test_acks_0_learns_of_a_record_that_was_refused_by_losing_its_connection(connect):
    for partition in (0, 1):
        client = connect()
        topic, _ = client.create(compression_type="zstd", message_timestamp_before_max_ms=60_000)
        client.produce_many({(topic, partition): batch(40, timestamp=5)}, acks=0)
        with pytest.raises(Unavailable):
            while True:
                client.end(topic, 0)


def test_clients_do_not_write_to_the_brokers_own_topics(client):
    from millstream.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["anybody"])
    found = request, FindCoordinatorResponse, 4  # makes the topic, if need be
    until(lambda: not client.connection.call(*found).coordinators[0].error_code)
    client.until_served("__consumer_offsets", 0, 1)
    for partition in (0, 1):
        assert client.error("__consumer_offsets", partition, batch(1)) == "INVALID_TOPIC_EXCEPTION"


def test_a_transactional_id_does_not_keep_ordinary_batches_out(client):
    """A batch of a transaction is told that its partition was not added to one: transactions are not served."""
    topic, _ = client.create()
    numbered = {"producer_id": 900, "producer_epoch": 0, "base_sequence": 0}
    for partition in (0, 1):
        for one, wanted in ((batch(2), 0), (batch(1, transactional=True, **numbered), ErrorCode.INVALID_TXN_STATE)):
            data = [TopicProduceData(topic, NO_ID, [PartitionProduceData(partition, one)])]
            request = ProduceRequest("some-id", -1, 10_000, data)
            part = client.connection.call(request, ProduceResponse, 9).responses[0].partition_responses[0]
            # Apache Kafka goes on asking for its transaction coordinator: NOT_ENOUGH_REPLICAS until there is one.
            assert part.error_code in (wanted, wanted and ErrorCode.NOT_ENOUGH_REPLICAS)
        assert client.end(topic, partition) == 2


def test_impossible_acks_are_told_after_what_is_wrong_with_the_batch(client):
    topic, _ = client.create()
    for partition in (0, 1):
        assert client.error(topic, partition, batch(), acks=2) == "INVALID_REQUIRED_ACKS"
        assert client.error(topic, partition, b"", acks=2) == "INVALID_RECORD"
        assert client.error("no-such-topic", partition, batch(), acks=2) == "UNKNOWN_TOPIC_OR_PARTITION"
