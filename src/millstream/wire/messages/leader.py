"""Where a partition's leader is, as Produce and Fetch tell a client that asked the wrong broker (KIP-951)."""

from millstream.wire.schema import Int32, Message


class LeaderIdAndEpoch(Message):
    """The leader known to the answering broker; -1 and -1 when there is nothing to tell."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class NodeEndpoint(Message):
    """The address of a broker that ``LeaderIdAndEpoch`` mentions."""

    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None
