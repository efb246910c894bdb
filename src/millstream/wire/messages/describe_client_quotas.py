"""API key 48, DescribeClientQuotas: the quotas of users, client ids and addresses (KIP-546)."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int8, Int16, Int32, Message, Request, Response


class ComponentData(Message):
    """A filter. ``match_type``: 0 the name in ``match``, 1 the default, 2 any name."""

    entity_type: str = ""
    match_type: Int8 = 0
    match: str | None = ""


class DescribeClientQuotasRequest(Request, api_key=48, versions=(0, 1), flexible=1):
    """Quotas of the entities that pass all filters."""

    components: list[ComponentData] = []
    strict: bool = False


class EntityData(Message):
    """A part of an entity; a name of ``None`` is the default."""

    entity_type: str = ""
    entity_name: str | None = ""


class ValueData(Message):
    """One quota."""

    key: str = ""
    value: float = 0.0


class EntryData(Message):
    """An entity and its quotas."""

    entity: list[EntityData] = []
    values: list[ValueData] = []


class DescribeClientQuotasResponse(Response, api_key=48, versions=(0, 1), flexible=1):
    """The quotas that were found."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = []
