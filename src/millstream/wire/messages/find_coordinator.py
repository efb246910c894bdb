"""API key 10, FindCoordinator: which broker coordinates a group or a transaction.

Version 1 added the type of the key, 4 several keys in one request (KIP-699), 6 share groups.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int8, Int16, Int32, Message, Request, Response


class FindCoordinatorRequest(Request, api_key=10, versions=(0, 6), flexible=3):
    """Which broker coordinates these keys? ``key_type``: 0 group, 1 transaction, 2 share group."""

    key: Annotated[str, F("0-3")] = ""
    key_type: Annotated[Int8, F("1+")] = 0
    coordinator_keys: Annotated[list[str], F("4+")] = []


class Coordinator(Message):
    """The coordinator of one key."""

    key: str = ""
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


class FindCoordinatorResponse(Response, api_key=10, versions=(0, 6), flexible=3):
    """The coordinators; the single-key fields serve versions 0 to 3."""

    throttle_time_ms: Annotated[Int32, F("1+")] = 0
    error_code: Annotated[Int16, F("0-3")] = 0
    error_message: Annotated[str | None, F("1-3")] = ""
    node_id: Annotated[Int32, F("0-3")] = 0
    host: Annotated[str, F("0-3")] = ""
    port: Annotated[Int32, F("0-3")] = 0
    coordinators: Annotated[list[Coordinator], F("4+")] = []
