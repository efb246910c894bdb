"""API key 49, AlterClientQuotas: change quotas of users, client ids and addresses (KIP-546)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.messages.describe_client_quotas import EntityData
from millstream.wire.schema import Int16, Int32, Message, Request, Response


class OpData(Message):
    """A change: a value to set, or ``remove``."""

    key: str = ""
    value: float = 0.0
    remove: bool = False


class AlterEntryData(Message):
    """An entity and its changes."""

    entity: list[EntityData] = []
    ops: list[OpData] = []


class AlterClientQuotasRequest(Request, api_key=49, versions=(0, 1), flexible=1):
    """Changes of several entities."""

    entries: list[AlterEntryData] = []
    validate_only: bool = False


class AlteredEntryData(Message):
    """What became of one entity."""

    error_code: Int16 = 0
    error_message: str | None = ""
    entity: list[EntityData] = []


class AlterClientQuotasResponse(Response, api_key=49, versions=(0, 1), flexible=1):
    """Results in the order of the request."""

    throttle_time_ms: Int32 = 0
    entries: list[AlteredEntryData] = []
