"""Unclean cuts: a person has decided whose replica a partition continues from, although records may be lost by it.

::

    CutPartition, from the broker of that replica ──► PartitionCut     every replica knows who leads, from which term on
    that replica leads ──CompleteCut──► PartitionCutDone               the others may be filled, and it cuts no more

The replica that is named leads alone, in the term of the cut or a later one; the others start empty and are filled by
it (`partition.replica.cutting`). The term is `TERM_GAP` above each that the partition was known to have: no replica has
used it, so the vote of a replica tells whether it has taken the cut. A replica that was away takes it when it comes
back, however late. So a cut is remembered as long as its partition.

Until the named replica leads it has no follower, and the others wait for it. If it never will, because its disk is
lost by now, a person decides again: the later cut replaces the earlier one. **Bad input.** Refused with a reason, and
nothing changes; a cut that is completed twice changes nothing. Whether the partition has a leader is not known here:
the broker that asks has found none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.core.controller.brokers import too_low
from millstream.core.controller.commands import CUTTING_PARTITIONS, PartitionCut, PartitionCutDone
from millstream.core.controller.requests import CompleteCut, CutPartition, Result
from millstream.core.controller.rules import Decision
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.model.replication import Term

if TYPE_CHECKING:
    from millstream.core.controller.rules import Rules
    from millstream.core.controller.state import ControllerState

TERM_GAP: Final = 1 << 16
"""More elections than a partition without a leader can have held unnoticed."""

TERM_MAX: Final = (1 << 31) - 1
"""Kafka's leader epoch is an int32."""

REASON_LENGTH_MAX: Final = 500


def decide_cut_partition(state: ControllerState, request: CutPartition, rules: Rules) -> Decision:
    """Let the replica of a live broker be the partition's log."""
    _ = rules
    try:
        return Decision((Result(),), (_cut(state, request),))
    except Rejected as error:
        return Decision((Result(error.code, error.message),))


def _cut(state: ControllerState, request: CutPartition) -> PartitionCut:
    where = f"{request.topic}:{request.index}"
    topic = state.topics.get(request.topic)
    if topic is None or not 0 <= request.index < len(topic.partitions):
        raise Rejected(f"there is no partition {where}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if state.feature_level < CUTTING_PARTITIONS:
        words = too_low(state, "partitions are cut uncleanly", CUTTING_PARTITIONS)
        raise Rejected(words, ErrorCode.UNSUPPORTED_VERSION)
    partition = topic.partitions[request.index]
    broker = state.registry.brokers.get(request.node)
    if broker is None or request.node not in partition.replicas:
        raise Rejected(f"broker {request.node} holds no replica of {where}", ErrorCode.INVALID_REQUEST)
    if broker.fenced or broker.is_lost:
        raise Rejected(f"broker {request.node} is not alive", ErrorCode.INVALID_REQUEST)
    if len(partition.replicas) == 1:
        words = f"{where} has one replica alone: it is cut back without the others ('millstream topic repair')"
        raise Rejected(words, ErrorCode.INVALID_REQUEST)
    before = state.cuts.get(partition.raft_group)
    term = max(request.term, partition.leader_epoch, before.term if before is not None else 0) + TERM_GAP
    if term > TERM_MAX:
        raise Rejected(f"{where} has no leader epoch left", ErrorCode.INVALID_REQUEST)
    reason = request.reason[:REASON_LENGTH_MAX] or "no reason given"
    return PartitionCut(topic.topic_id, request.index, broker.replica, Term(term), request.end_offset, reason)


def decide_complete_cut(state: ControllerState, request: CompleteCut, rules: Rules) -> Decision:
    """The replica of a cut leads. No effect if another cut has replaced it, or if that is known."""
    _ = rules
    topic = state.topics.by_id.get(request.topic_id)
    if topic is None or not 0 <= request.index < len(topic.partitions):
        return Decision((Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition was deleted"),))
    cut = state.cuts.get(topic.partitions[request.index].raft_group)
    if cut is None or cut.term != request.term or cut.done:
        return Decision((Result(),))
    return Decision((Result(),), (PartitionCutDone(request.topic_id, request.index, request.term),))
