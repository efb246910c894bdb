"""The embedded protocol of classic consumers (inside JoinGroup and SyncGroup), read and written by the broker.

In a consumer group the coordinator acts as the leader: it reads the members' subscriptions and writes their
assignments, in the embedded version that the member itself used.
"""

from millstream.core.group.consumer_state.member import ConsumerMember
from millstream.core.group.topics import Topics
from millstream.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from millstream.wire.stored import decode_versioned, encode_versioned

_VERSION_MAX = ConsumerProtocolAssignment.VERSIONS[1]


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """The subscription. ProtocolError if the bytes are invalid."""
    return decode_versioned(ConsumerProtocolSubscription, metadata)


def read_assignment(assignment: bytes) -> ConsumerProtocolAssignment:
    """The assignment; empty bytes assign nothing. ProtocolError if the bytes are invalid."""
    return decode_versioned(ConsumerProtocolAssignment, assignment) if assignment else ConsumerProtocolAssignment()


def assignment_bytes(member: ConsumerMember, topics: Topics) -> bytes:
    """The encoded assignment of a classic member."""
    assert member.classic is not None
    partitions: list[TopicPartition] = []
    for topic_id, owned in member.assigned.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            partitions.append(TopicPartition(topic=topic.name, partitions=sorted(owned)))
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=partitions), _version(member))


def reported_by(subscription: ConsumerProtocolSubscription, topics: Topics) -> dict[bytes, list[int]]:
    """The partitions that a classic member reports as owned, by topic id."""
    owned: dict[bytes, list[int]] = {}
    for entry in subscription.owned_partitions:
        topic = topics.by_name(entry.topic)
        if topic is not None:
            owned.setdefault(topic.topic_id, []).extend(entry.partitions)
    return owned


def _version(member: ConsumerMember) -> int:
    assert member.classic is not None
    metadata = member.classic.supported_protocols[0].metadata
    return min(max(int.from_bytes(metadata[:2], "big", signed=True), 0), _VERSION_MAX)
