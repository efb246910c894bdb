"""What a Kafka client sees of event topics: odd records, and transactions that name them.

Raw requests to one real broker of ours; Kafka has no event topics. Every refusal is an answer, the connection lives,
and so does the topic: what is refused is in no log.
"""

import pytest
from edge_client import batch

from millstream.model.error_code import ErrorCode
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
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

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.fixture
def topic(client):
    return client.create(topic_kind="events")[0]


class Transaction:
    """A transactional producer that has begun."""

    def __init__(self, client, name):
        self.call = client.connection.call
        self.name = name
        while (
            self.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), FindCoordinatorResponse, 4)
            .coordinators[0]
            .error_code
        ):
            pass
        while (answer := client.producer_id(transactional_id=name, transaction_timeout_ms=60_000)).error_code:
            assert answer.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS)
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def add(self, version, *topics):
        """{topic: code} of adding partition 0 of each."""
        asked = [AddPartitionsToTxnTopic(topic, [0]) for topic in topics]
        if version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=asked,
            )
            results = self.call(request, AddPartitionsToTxnResponse, version).results_by_topic_v3_and_below
        else:
            one = AddPartitionsToTxnTransaction(self.name, self.id, self.epoch, False, asked)
            answer = self.call(AddPartitionsToTxnRequest(transactions=[one]), AddPartitionsToTxnResponse, version)
            results = answer.results_by_transaction[0].topic_results
        return {one.name: ErrorCode(one.results_by_partition[0].partition_error_code).name for one in results}

    def produce(self, version, topic, sequence=0, **options):
        """The error for one record."""
        data = batch(
            value=b"{}",
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
            **options,
        )
        asked = [TopicProduceData(topic, bytes(16), [PartitionProduceData(0, data)])]
        request = ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=10_000, topic_data=asked)
        answer = self.call(request, ProduceResponse, version).responses[0].partition_responses[0]
        return ErrorCode(answer.error_code).name

    def end(self, version, *, commits):
        answer = self.call(EndTxnRequest(self.name, self.id, self.epoch, commits), EndTxnResponse, version)
        if version >= 5 and not answer.error_code:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code).name


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
