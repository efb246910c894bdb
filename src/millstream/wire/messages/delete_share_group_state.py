"""API key 86, DeleteShareGroupState: forget the state of share partitions (KIP-932)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.messages.share_state_results import StateTopicResult
from millstream.wire.schema import ZERO_UUID, Int32, Message, Request, Response, Uuid


class DeleteStatePartition(Message):
    """A share partition."""

    partition: Int32 = 0


class DeleteStateTopic(Message):
    """The partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[DeleteStatePartition] = []


class DeleteShareGroupStateRequest(Request, api_key=86, versions=(0, 0), flexible=0):
    """Forget these share partitions."""

    group_id: str = ""
    topics: list[DeleteStateTopic] = []


class DeleteShareGroupStateResponse(Response, api_key=86, versions=(0, 0), flexible=0):
    """The outcome of each."""

    results: list[StateTopicResult] = []
