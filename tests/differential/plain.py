"""A decoded answer as data that two brokers can agree on.

What no two brokers share is taken out and its presence kept: the fresh part of names, ids, ports, clocks, sessions, the
wording of messages. Of the properties that CreateTopics tells, those that the topic itself has are kept here; a case of
its own looks at the others. Lists whose order Kafka leaves to a hash map are sorted by what identifies their elements;
the order of records is kept. Nothing else is changed: a number that differs is a difference.
"""

import json
import re
import time
import zlib
from typing import Any

import msgspec

from differential.odd import fields_of
from millstream.wire.errors import BatchError
from millstream.wire.messages.create_topics import CreatableTopicConfigs
from millstream.wire.messages.fetch import FetchableTopicResponse
from millstream.wire.messages.list_groups import ListedGroup
from millstream.wire.messages.produce import TopicProduceResponse
from millstream.wire.records import iter_batches, iter_records, parse_header
from millstream.wire.schema import ZERO_UUID, Kind, Message, Type

DAY_MS = 86_400_000
LONG = 96
OF_THE_TOPIC = 1

HOUSE = ("__", "warm-")
"""What names of internal topics and of the harness's own groups begin with."""

_TAG = re.compile(r"-[0-9a-z]{4}Z[0-9]{5}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GENERATED = re.compile(rf"{_UUID.pattern}|[0-9A-Za-z_-]{{22}}")
_PLACES = {"cluster_id": "the cluster", "log_dir": "the directory"}
_WORDS = {
    "error_message",
    "batch_index_error_message",
    "acknowledge_error_message",
    "status_detail",
    "documentation",
}
IDENTITY = (
    "name",
    "topic",
    "topic_id",
    "topic_name",
    "group_id",
    "key",
    "resource_type",
    "resource_name",
    "partition_index",
    "partition",
    "index",
    "member_id",
    "group_instance_id",
    "node_id",
    "broker_id",
    "api_key",
    "log_dir",
)


class Names:
    """What this run calls things: the fresh part of names, and topics by id."""

    def __init__(self, tag: str, port: int, texts: bool = False) -> None:
        self.tag = tag
        self.port = port
        self.texts = texts
        self.all_configs = False
        self.topics: dict[bytes, str] = {}

    def fresh(self, label: str) -> str:
        """A name that nothing else has; answers show it as ``label``."""
        return f"{label}-{self.tag}"

    def is_foreign(self, value: Any) -> bool:
        """Whether a listed thing belongs to another case, or to the broker itself."""
        if isinstance(value, CreatableTopicConfigs):
            return not self.all_configs and value.config_source != OF_THE_TOPIC
        if isinstance(value, ListedGroup):
            return self.tag not in value.group_id
        for field in ("name", "topic", "group_id", "topic_name", "key"):
            found = getattr(value, field, None)
            if isinstance(found, str) and (_TAG.search(found) or found.startswith(HOUSE)) and self.tag not in found:
                return True
        return False

    def text(self, value: str) -> str:
        return _UUID.sub("<uuid>", value.replace(f"-{self.tag}", "").replace(self.tag, "<tag>"))

    def topic_id(self, value: bytes) -> str:
        if value == ZERO_UUID:
            return "no id"
        return f"id of {self.topics[value]}" if value in self.topics else "an id"


def plain(message: Message, version: int, names: Names) -> dict[str, Any]:
    """The fields that this version carries, as comparable data."""
    out: dict[str, Any] = {}
    for field in fields_of(type(message), version):
        if field.present:
            out[field.name] = _field(field.name, getattr(message, field.name), field.type, version, names)
    return out


def _field(name: str, value: Any, kind: Type, version: int, names: Names) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if kind.kind is Kind.STRUCT:
        return plain(value, version, names)
    if kind.kind is Kind.ARRAY:
        assert kind.element is not None
        value = merged(value)
        return ordered(
            [_field(name, element, kind.element, version, names) for element in value if not names.is_foreign(element)]
        )
    if kind.kind is Kind.RECORDS:
        return batches(bytes(value), names)
    if kind.kind is Kind.UUID:
        return names.topic_id(bytes(value))
    if isinstance(value, int):
        return _number(name, value, names)
    if isinstance(value, str):
        if name in _WORDS and not names.texts:
            return "some text" if value else ""
        if name == "member_id" and _GENERATED.fullmatch(value) and not value.startswith("AAAA"):
            return "a generated id"
        if name in _PLACES and value:
            return _PLACES[name]
        return names.text(value)
    return data(bytes(value), names)


def _number(name: str, value: int, names: Names) -> Any:
    if name == "port" and value > 0:
        return "the port" if value == names.port else "another port"
    if name == "subscription_id" and value:
        return "a subscription"
    if name == "session_id" and value > 0:
        return "a session"
    if name == "finalized_features_epoch" and value >= 0:
        return "an epoch"
    if name == "producer_id" and value >= 0:
        return "a producer"
    if name in ("total_bytes", "usable_bytes") and value > 0:
        return "some bytes"
    return "now" if abs(value - time.time() * 1000) < DAY_MS else value


def data(value: bytes, names: Names) -> str:
    """Bytes, readable where they are text."""
    if len(value) > LONG:
        return f"{len(value)} bytes, {zlib.crc32(value):08x}"
    text = value.decode("utf-8", "replace")
    return names.text(text) if text.isprintable() and "\ufffd" not in text else "hex " + value.hex()


def batches(value: bytes, names: Names) -> list[Any]:
    """The batches of a records field; a piece of one at the end is said to be there."""
    out: list[Any] = []
    at = 0
    try:
        for batch in iter_batches(memoryview(value)):
            out.append(_batch(batch, names))
            at += len(batch)
    except BatchError:
        pass
    return [*out, "part of a batch"] if at < len(value) else out


def _batch(batch: memoryview, names: Names) -> dict[str, Any]:
    header = parse_header(batch)
    records = [
        [
            one.offset,
            _number("", one.timestamp, names),
            None if one.key is None else data(one.key, names),
            None if one.value is None else data(one.value, names),
            [[name, None if content is None else data(content, names)] for name, content in one.headers],
        ]
        for one in iter_records(batch)
    ]
    return {
        "base_offset": header.base_offset,
        "last_offset_delta": header.last_offset_delta,
        "attributes": header.attributes,
        "leader_epoch": header.leader_epoch,
        "base_timestamp": _number("", header.base_timestamp, names),
        "max_timestamp": _number("", header.max_timestamp, names),
        "producer": [header.producer_id >= 0, header.producer_epoch, header.base_sequence],
        "records": records,
    }


def merged(values: list[Any]) -> list[Any]:
    """Fetch and Produce may answer one topic in several places; readers put them together, and so does this."""
    if not values or not isinstance(values[0], FetchableTopicResponse | TopicProduceResponse):
        return values
    topics: dict[tuple[str, bytes], Any] = {}
    for one in values:
        name = (getattr(one, "topic", "") or getattr(one, "name", ""), bytes(one.topic_id))
        field = "partitions" if isinstance(one, FetchableTopicResponse) else "partition_responses"
        before = getattr(topics[name], field) if name in topics else []
        topics[name] = msgspec.structs.replace(one, **{field: [*before, *getattr(one, field)]})
    return list(topics.values())


def ordered(values: list[Any]) -> list[Any]:
    """Lists of structs and of strings sorted, lists of numbers as they are."""
    if values and isinstance(values[0], dict):
        return sorted(values, key=_rank)
    return sorted(values) if values and all(isinstance(one, str) for one in values) else values


def _rank(value: dict[str, Any]) -> tuple[list[tuple[int, str]], str]:
    identity = [value.get(name) for name in IDENTITY]
    key = [(one if isinstance(one, int) else -1, one if isinstance(one, str) else "") for one in identity]
    return key, json.dumps(value, sort_keys=True)
