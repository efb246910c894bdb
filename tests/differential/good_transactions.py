"""Well-formed requests about transactions; see ``good``."""

from collections.abc import Callable

from differential.talk import Talk
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest
from millstream.wire.messages.end_txn import EndTxnRequest
from millstream.wire.messages.list_transactions import ListTransactionsRequest
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from millstream.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from millstream.wire.schema import Request


def add_partitions_request(name: str, producer_id: int, epoch: int, topic: str, *indexes: int) -> Request:
    """Adds partitions, in the words of every version."""
    topics = [AddPartitionsToTxnTopic(topic, list(indexes))]
    several = [AddPartitionsToTxnTransaction(name, producer_id, epoch, False, topics)]
    return AddPartitionsToTxnRequest(several, name, producer_id, epoch, topics)


def txn_offsets_request(name: str, group: str, producer_id: int, epoch: int, topic: str, offset: int) -> Request:
    parts = [TxnOffsetCommitRequestPartition(0, offset)]
    topics = [TxnOffsetCommitRequestTopic(topic, parts)]
    return TxnOffsetCommitRequest(name, group, producer_id, epoch, topics=topics)


def marker_request(producer_id: int, epoch: int, topic: str, *indexes: int, commits: bool = False) -> Request:
    topics = [WritableTxnMarkerTopic(topic, list(indexes))]
    return WriteTxnMarkersRequest([WritableTxnMarker(producer_id, epoch, commits, topics, 0)])


GOOD_TRANSACTIONS: dict[int, Callable[[Talk], Request]] = {
    24: lambda t: add_partitions_request(t.name("x"), 5, 0, t.topic().name, 0),
    25: lambda t: AddOffsetsToTxnRequest(t.name("x"), 5, 0, t.name("g")),
    26: lambda t: EndTxnRequest(t.name("x"), 5, 0, True),
    27: lambda t: marker_request(5, 0, t.topic().name, 0),
    28: lambda t: txn_offsets_request(t.name("x"), t.name("g"), 5, 0, t.topic().name, 1),
    65: lambda t: DescribeTransactionsRequest([t.name("x")]),
    66: lambda t: ListTransactionsRequest(["Ongoing"], [1 << 40]),
}
