"""API key 20, DeleteTopics.

Version 5 added error messages, 6 deletion by topic id.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import ZERO_UUID, F, Int16, Int32, Message, Request, Response, Uuid


class DeleteTopicState(Message):
    """A topic by name or by id."""

    name: str | None = None
    topic_id: Uuid = ZERO_UUID


class DeleteTopicsRequest(Request, api_key=20, versions=(1, 6), flexible=4):
    """Delete topics: ``topics`` from version 6, ``topic_names`` before."""

    topics: Annotated[list[DeleteTopicState], F("6+")] = []
    topic_names: Annotated[list[str], F("0-5")] = []
    timeout_ms: Int32 = 0


class DeletableTopicResult(Message):
    """A deleted topic, or the reason against it."""

    name: Annotated[str | None, F(nullable="6+")] = ""
    topic_id: Annotated[Uuid, F("6+")] = ZERO_UUID
    error_code: Int16 = 0
    error_message: Annotated[str | None, F("5+")] = None


class DeleteTopicsResponse(Response, api_key=20, versions=(1, 6), flexible=4):
    """The result for each topic."""

    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = []
