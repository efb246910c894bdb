"""API key 92, DeleteShareGroupOffsets: let a share group without members forget topics (KIP-932)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import ZERO_UUID, Int16, Int32, Message, Request, Response, Uuid


class DeleteShareOffsetsTopic(Message):
    """A topic to forget."""

    topic_name: str = ""


class DeleteShareGroupOffsetsRequest(Request, api_key=92, versions=(0, 0), flexible=0):
    """Forget topics of one group."""

    group_id: str = ""
    topics: list[DeleteShareOffsetsTopic] = []


class DeletedShareOffsetsTopic(Message):
    """What became of a topic."""

    topic_name: str = ""
    topic_id: Uuid = ZERO_UUID
    error_code: Int16 = 0
    error_message: str | None = None


class DeleteShareGroupOffsetsResponse(Response, api_key=92, versions=(0, 0), flexible=0):
    """The outcome of each topic, or of the whole group."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    responses: list[DeletedShareOffsetsTopic] = []
