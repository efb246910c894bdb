"""What several tests of the group APIs begin with, through the handlers."""

from coordinator_fakes import Broker, call

from millstream.coordinator.hashing import partition_of
from millstream.kafka.handlers.groups import join_group, sync_group
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

ID_T, ID_U, ID_NONE = b"t" * 16, b"u" * 16, b"?" * 16


def broker_of(shards: int) -> Broker:
    """Requests come in on shard 0; with two shards half of the groups live on the other."""
    made = Broker(shards, logs={})
    made.metadata.add("t", ID_T, [0, 0])
    made.metadata.add("u", ID_U, [0])
    return made


def group_on(broker: Broker, shard: int) -> str:
    """A group that lives on ``shard`` (the last one, if there are fewer)."""
    shard = min(shard, len(broker.routers) - 1)
    return next(
        f"group-{i}" for i in range(100) if partition_of(f"group-{i}", broker.count) % len(broker.routers) == shard
    )


def join(
    broker: Broker, group: str, member_id: str = "", version: int = 9, *, metadata: bytes = b"m", **options: object
):
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        **options,
    )
    return call(broker, join_group, request, version)


def stable(broker: Broker, group: str, metadata: bytes = b"m") -> str:
    """The only member of a stable group of generation 1."""
    member_id = join(broker, group, metadata=metadata)[0].member_id
    (joined,) = join(broker, group, member_id, metadata=metadata)
    assert (joined.error_code, joined.generation_id) == (0, 1)
    assignments = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")]
    request = SyncGroupRequest(
        group_id=group,
        generation_id=1,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=assignments,
    )
    (synced,) = call(broker, sync_group, request, 5)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    return member_id


def joining(group: str, topics: list[str]) -> ConsumerGroupHeartbeatRequest:
    """Member ``a`` joins a consumer group."""
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="a",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=topics,
        topic_partitions=[],
    )
