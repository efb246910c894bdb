"""API key 83, InitializeShareGroupState: set the start and the state epoch of share partitions (KIP-932)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.messages.share_state_results import StateTopicResult
from millstream.wire.schema import ZERO_UUID, Int32, Int64, Message, Request, Response, Uuid


class InitializeStatePartition(Message):
    """A share partition; start -1 is resolved by its leader."""

    partition: Int32 = 0
    state_epoch: Int32 = 0
    start_offset: Int64 = 0


class InitializeStateTopic(Message):
    """The partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[InitializeStatePartition] = []


class InitializeShareGroupStateRequest(Request, api_key=83, versions=(0, 0), flexible=0):
    """Set the state of these share partitions."""

    group_id: str = ""
    topics: list[InitializeStateTopic] = []


class InitializeShareGroupStateResponse(Response, api_key=83, versions=(0, 0), flexible=0):
    """The outcome of each."""

    results: list[StateTopicResult] = []
