"""A transactional producer of raw requests."""

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


class Transaction:
    """A transactional producer that has begun."""

    def __init__(self, client, name, timeout_ms=60_000):
        self.call = client.connection.call
        self.name = name
        while (
            self.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), FindCoordinatorResponse, 4)
            .coordinators[0]
            .error_code
        ):
            pass
        while (answer := client.producer_id(transactional_id=name, transaction_timeout_ms=timeout_ms)).error_code:
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
