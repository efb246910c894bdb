"""What ShareFetch and ShareAcknowledge have in common: places of share partitions, acknowledgements, leaders."""

from collections.abc import Callable, Sequence
from typing import Final

from millstream.core.share.partition import RENEW, Acknowledgement
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.data.fetch_refusals import lead_to
from millstream.model.access import Operation
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, ShardId
from millstream.partition.partition import Partition
from millstream.partition.table import Elsewhere, Remote
from millstream.share.home import AcknowledgeAsk, Place
from millstream.share.sessions import TopicPartition
from millstream.wire.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from millstream.wire.messages.share_acknowledge import AcknowledgementBatch

MEMBER_ID_MAX: Final = 36

_TYPES: Final = frozenset(range(RENEW + 1))
_KNOWS_THE_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
NO_LEADER: Final = LeaderIdAndEpoch(0, 0)


def is_member(group_id: str | None, member_id: str | None) -> bool:
    """Whether a request names a group and a member; that the member is in the group is not checked, as in Kafka."""
    return bool(group_id) and bool(member_id) and len(member_id or "") <= MEMBER_ID_MAX


def place_of(
    node: Node, ctx: RequestContext, group_id: str, topic_partition: TopicPartition
) -> tuple[ShardId, Place] | ErrorCode:
    """The shard and the place of a share partition, or why this broker does not serve it to this client."""
    topic_id, index = topic_partition
    if ctx.asker is not None and not ctx.asker.named(Operation.READ, "", topic_id):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = node.metadata.topic_by_id(topic_id)
    entry = node.partitions.find(topic_id, index)
    if topic is None or entry is None:
        return node.partitions.missing(topic_id)
    if topic.config.has_events:
        return ErrorCode.INVALID_REQUEST
    key = (group_id, topic_id, index)
    if isinstance(entry, Partition):
        return node.shard.id, (key, entry.raft_group)
    if isinstance(entry, Remote) and not isinstance(entry, Elsewhere):
        return entry.shard, (key, entry.raft_group)
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(entry, Elsewhere) else ErrorCode.KAFKA_STORAGE_ERROR


def acknowledgements(batches: Sequence[AcknowledgementBatch], *, renews: bool) -> list[Acknowledgement] | None:
    """The batches of one partition, which ascend and do not overlap; None if they are invalid."""
    given: list[Acknowledgement] = []
    end = -1
    for one in batches:
        types = list(one.acknowledge_types)
        size = one.last_offset - one.first_offset + 1
        if one.first_offset <= end or size < 1 or len(types) not in (1, size) or not _TYPES.issuperset(types):
            return None
        if RENEW in types and not renews:
            return None
        end = one.last_offset
        given.append(Acknowledgement(Offset(one.first_offset), Offset(one.last_offset), types))
    return given


def acknowledge(
    node: Node,
    ctx: RequestContext,
    group_id: str,
    member_id: str,
    batches: dict[TopicPartition, list[AcknowledgementBatch]],
    done: dict[TopicPartition, ErrorCode],
    finish: "Finish",
    *,
    renews: bool,
) -> None:
    """Acknowledge in each partition; ``done`` gets the outcomes, then ``finish.settled`` is called for each."""
    for topic_partition, of_partition in batches.items():
        given = acknowledgements(of_partition, renews=renews)
        place = place_of(node, ctx, group_id, topic_partition)

        def answered(error: ErrorCode, topic_partition: TopicPartition = topic_partition) -> None:
            done[topic_partition] = error
            finish.settled()

        if isinstance(place, ErrorCode):
            answered(place)
        elif given is None:
            answered(ErrorCode.INVALID_REQUEST)
        else:
            node.share_partitions.acknowledge(place[0], AcknowledgeAsk(member_id, place[1], given), answered)


class Finish:
    """Counts what is still to be settled, and calls ``then`` after the last."""

    __slots__ = ("_missing", "_then")

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._missing = count
        self._then = then

    def settled(self) -> None:
        """One less."""
        self._missing -= 1
        if not self._missing:
            self._then()


def leader_of(
    node: Node, ctx: RequestContext, topic_partition: TopicPartition, error: ErrorCode, endpoints: list[NodeEndpoint]
) -> LeaderIdAndEpoch:
    """Where the leader is, if it is not here. Its address is added to ``endpoints``."""
    topic = node.metadata.topic_by_id(topic_partition[0])
    if error not in _KNOWS_THE_LEADER or topic is None or topic_partition[1] >= len(topic.partitions):
        return NO_LEADER
    return lead_to(node, ctx, topic.partitions[topic_partition[1]], endpoints)
