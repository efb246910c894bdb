"""What a Kafka client sees of event topics: odd records, and transactions that name them.

Raw requests to one real broker of ours; Kafka has no event topics. Every refusal is an answer, the connection lives,
and so does the topic: what is refused is in no log.
"""

import time

import pytest
from edge_client import batch, patched, stored
from edge_transactions import Transaction

from millstream.format.events.batch import EVENTS
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from millstream.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from millstream.wire.records import build_batch, iter_records

pytestmark = pytest.mark.process


@pytest.fixture
def topic(client):
    return client.create(topic_kind="events")[0]


DEEP = b"[" * 50_000 + b"]" * 50_000
ODD = {
    "a null value": None,
    "an empty value": b"",
    "no UTF-8": b"\xff\xfe",
    "NaN": b'{"a": NaN}',
    "an integer that no client reads": b'{"a": 1' + b"0" * 5000 + b"}",
    "a lone surrogate": b'{"a": "\\ud800"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "deep arrays": DEEP,
    "deep arrays that are no JSON": b"[" * 50_000,
    "deep objects": b'{"a":' * 900 + b"1" + b"}" * 900,
    "two documents": b"{} {}",
}
GOOD = {
    "a string": b'"x"',
    "null": b"null",
    "nested": b"[" * 500 + b"]" * 500,
    "many brackets in a string": b'"' + b"[" * 5000 + b'\\""',
    "many arrays side by side": b"[" + b"[]," * 5000 + b"[]]",
    "a member twice": b'{"a": 1, "a": 2}',
    "NUL": b'{"a": "\\u0000"}',
}
NOW = 1_700_000_000_000


def records(*values, key=b"k" * 70_000, headers=(("h", None), ("mofka.data.desc", b"bad")), **options):
    return build_batch([(key, value, headers, NOW + n) for n, value in enumerate(values)], **options)


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 4])
def test_records_that_are_no_events_are_named_one_by_one(client, topic, partition, codec):
    for what, value in ODD.items():
        answer = client.produce(topic, partition, records(b"{}", value, b"{}", value, compression=codec))
        assert ErrorCode(answer.error_code).name == "INVALID_RECORD", what
        assert [one.batch_index for one in answer.record_errors] == [1, 3], what
        assert answer.record_errors[0].batch_index_error_message.startswith("Its metadata are"), what
        assert answer.error_message.startswith("One or more records have been rejected due to 2 record errors"), what
    assert client.end(topic, partition) == 0
    for n, (what, value) in enumerate(GOOD.items()):
        assert client.produce(topic, partition, records(value, compression=codec)).base_offset == n, what
    found = [
        record.value for one in stored(client, topic, partition, len(GOOD)) for record in iter_records(memoryview(one))
    ]
    assert found == list(GOOD.values())


def test_every_record_that_breaks_a_rule_of_time_is_named(client):
    topic = client.create(
        topic_kind="events", message_timestamp_before_max_ms=600_000, message_timestamp_after_max_ms=600_000
    )[0]
    now = int(time.time() * 1000)
    data = build_batch([(None, b"{}", (), now + offset) for offset in (0, 9_000_000, -9_000_000)])
    answer = client.produce(topic, 0, data)
    assert ErrorCode(answer.error_code).name == "INVALID_TIMESTAMP"
    assert [one.batch_index for one in answer.record_errors] == [1, 2]
    assert client.end(topic, 0) == 0


@pytest.mark.parametrize(
    "headers", [(("mofka.metadata", DEEP),), (("mofka.metadata", b"{}"), ("mofka.metadata", b"x"))]
)
def test_metadata_in_a_header_are_checked_as_those_in_the_value(client, topic, headers):
    assert client.error(topic, 0, records(b"data", headers=headers)) == "INVALID_RECORD"


def test_an_idempotent_producer_keeps_its_order_while_batches_are_inspected(client, topic):
    """A large batch goes through the worker; a small one behind it must wait for it."""
    who = client.producer_id()
    sizes = (500, 1, 300, 1, 2, 700)
    sequence, call = 0, client.connection
    for count in sizes:
        data = records(
            *[b"%d" % (sequence + n) for n in range(count)],
            key=None,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=sequence,
        )
        asked = [TopicProduceData(topic, bytes(16), [PartitionProduceData(0, data)])]
        call.send(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=asked), 9)
        sequence += count
    answers = [call.receive(ProduceResponse).responses[0].partition_responses[0] for _ in sizes]
    assert [(one.error_code, one.base_offset) for one in answers] == [
        (0, sum(sizes[:place])) for place in range(len(sizes))
    ]
    found = [record.value for one in stored(client, topic, 0, sequence) for record in iter_records(memoryview(one))]
    assert found == [b"%d" % n for n in range(sequence)]


def test_a_batch_that_claims_to_be_of_events_is_refused_by_an_ordinary_topic(client):
    topic = client.create()[0]
    data = patched(batch(), 21, ">h", EVENTS)
    assert client.error(topic, 0, data) == "INVALID_RECORD"
    assert client.error(topic, 0, batch()) == "NONE"
    assert client.fetch_one(topic, 0, 0, max_wait_ms=5000).error_code == 0


@pytest.mark.parametrize("version", [0, 3, 4, 5])
def test_an_event_topic_is_never_part_of_a_transaction(client, topic, version):
    plain = client.create()[0]
    one = Transaction(client, f"events-{version}")
    refused = "TRANSACTION_ABORTABLE" if version >= 5 else "INVALID_TXN_STATE"
    for name in (topic, f"{topic}.data"):
        assert one.add(version, plain, name) == {plain: "OPERATION_NOT_ATTEMPTED", name: refused}
    assert one.add(version, plain, "__transaction_state") == {
        plain: "OPERATION_NOT_ATTEMPTED",
        "__transaction_state": "TOPIC_AUTHORIZATION_FAILED",
    }
    assert one.add(version, plain) == {plain: "NONE"}
    assert one.produce(11, plain) == "NONE"
    assert one.end(4, commits=True) == "NONE"
    assert client.end(topic, 0) == 0


@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize("control", [False, True])
def test_a_batch_of_a_transaction_is_refused_before_it_is_in_a_log_of_events(client, topic, version, control):
    one = Transaction(client, f"produce-{version}")
    refused = "INVALID_RECORD" if control else "INVALID_TXN_STATE"
    assert one.produce(version, topic, control=control) == refused
    assert one.produce(version, f"{topic}.data", control=control) == "INVALID_TOPIC_EXCEPTION"
    assert client.end(topic, 0) == 0
    assert client.error(topic, 0, batch(value=b'{"n": 1}')) == "NONE", "the topic takes what it took before"


def test_markers_never_enter_a_log_of_events(client, topic):
    topics = [WritableTxnMarkerTopic(topic, [0]), WritableTxnMarkerTopic(client.create()[0], [0])]
    for version, commits in ((1, False), (1, True), (2, False), (2, True)):
        marker = WritableTxnMarker(7, 3, commits, topics, 0)
        answer = client.connection.call(WriteTxnMarkersRequest([marker]), WriteTxnMarkersResponse, version)
        codes = [one.partitions[0].error_code for one in answer.markers[0].topics]
        assert codes == [0, 0]
    assert [client.end(one.name, 0) for one in topics] == [0, 0]


@pytest.mark.parametrize("version", [4, 5])
def test_a_partition_without_a_record_of_the_transaction_gets_no_marker(client, version):
    written, empty = client.create()[0], client.create()[0]
    one = Transaction(client, f"empty-{version}")
    for commits in (True, False):
        before = client.end(written, 0)
        assert one.add(3, written, empty) == {written: "NONE", empty: "NONE"}
        assert one.produce(11, written, sequence=0 if version >= 5 or commits else 1) == "NONE"
        assert one.end(version, commits=commits) == "NONE"
        while client.end(written, 0) != before + 2 or client.offset(written, 0, -1, isolation=1)[2] != before + 2:
            pass
        assert client.end(empty, 0) == 0
