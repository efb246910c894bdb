"""kafka-python's codec as an oracle: it shares no line with ours and must agree on every byte of both directions."""

import types
import warnings
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from wire_samples import API_MESSAGES, OTHER_MESSAGES, every_version, sample

from millstream.wire.codec import decode_message, encode_message
from millstream.wire.headers import (
    encode_request_header,
    parse_request_header,
    response_header_bytes,
)
from millstream.wire.messages.api_versions import ApiVersionsResponse
from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import Embedded, Field, Kind, Message, Request, Response, Stored, Type, fields_of
from millstream.wire.stored import decode_versioned, encode_versioned

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it loads its schemas in a deprecated way
    import kafka.protocol.admin as kafka_admin
    import kafka.protocol.consumer as kafka_consumer
    import kafka.protocol.metadata as kafka_metadata
    import kafka.protocol.producer as kafka_producer
    import kafka_schemas
    from kafka.protocol.api_data import ApiData
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment as KafkaAssignment
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as KafkaSubscription

    _FROM_SCHEMAS = {
        name: types.new_class(
            name, (ApiMessage if name.endswith(("Request", "Response")) else ApiData,), {"load_json": kafka_schemas}
        )
        for name in (file.stem for file in Path(kafka_schemas.__file__).parent.glob("*.json"))
    }
    """Its codec for messages whose schema it does not bring."""

_MODULES = (kafka_admin, kafka_consumer, kafka_metadata, kafka_producer)
_OPERATIONS = "authorized_operations"
_EMBEDDED = {"ConsumerProtocolAssignment": KafkaAssignment, "ConsumerProtocolSubscription": KafkaSubscription}


def _sample(rng: Random, cls: type[Message], version: int) -> Any:
    message = sample(rng, cls, version)
    if isinstance(message, ApiVersionsResponse):  # it reads answers with an error as version 0
        return msgspec.structs.replace(message, error_code=0)
    return _without_empty_tags(message, version)


def _without_empty_tags(message: Any, version: int) -> Any:
    """The message with None for each empty list that a tag carries and that may be null: the oracle leaves it out."""
    changes: dict[str, Any] = {}
    for field in fields_of(type(message), version):
        value = getattr(message, field.name)
        if field.tag is not None and field.nullable and value == []:
            changes[field.name] = None
        elif isinstance(value, Message):
            changes[field.name] = _without_empty_tags(value, version)
        elif isinstance(value, list) and value and isinstance(value[0], Message):
            changes[field.name] = [_without_empty_tags(one, version) for one in value]
    return msgspec.structs.replace(message, **changes) if changes else message


def _encode(message: Any, version: int) -> bytes:
    return (
        encode_versioned(message, version)
        if isinstance(message, Embedded | Stored)
        else bytes(encode_message(message, version))
    )


def _decode(cls: Any, version: int, data: bytes) -> Any:
    return decode_versioned(cls, data) if issubclass(cls, Embedded | Stored) else decode_message(cls, version, data)


def _oracle(cls: type[Message]) -> Any:
    if cls.__name__ in _EMBEDDED:
        return _EMBEDDED[cls.__name__]
    if cls.__name__ in _FROM_SCHEMAS:
        return _FROM_SCHEMAS[cls.__name__]
    return next((getattr(module, cls.__name__) for module in _MODULES if hasattr(module, cls.__name__)), None)


def _known(case: tuple[type[Message], int]) -> bool:
    theirs = _oracle(case[0])
    return theirs is not None and (theirs.max_version is None or case[1] <= theirs.max_version)


_COMMON = [case for case in API_MESSAGES + OTHER_MESSAGES if _known(case)]


_UNKNOWN_THERE = {
    f"{api}{side}"
    for api in (
        "ConsumerGroupDescribe",
        "ConsumerGroupHeartbeat",
        "GetTelemetrySubscriptions",
        "PushTelemetry",
        "SaslAuthenticate",
        "SaslHandshake",
        "UnregisterBroker",
    )
    for side in ("Request", "Response")
}
"""APIs that the oracle lacks; what a real Kafka wrote stands for it in the golden and the differential tests."""

_OWN_FROM = 15_000
"""API keys of Millstream alone, which Kafka does not have; their bytes are in the golden tests."""


def test_the_oracle_knows_most_messages() -> None:
    of_kafka = {cls.__name__ for cls, _ in API_MESSAGES if cls.API_KEY < _OWN_FROM}
    assert of_kafka - {cls.__name__ for cls, _ in _COMMON} <= _UNKNOWN_THERE
    assert len(_COMMON) >= 0.9 * len(API_MESSAGES)


@every_version(_COMMON)
def test_kafka_python_reads_what_we_write(cls: type[Message], version: int) -> None:
    rng = Random(f"{cls.__name__}{version}")
    for _ in range(8):
        message = _sample(rng, cls, version)
        theirs = _decode_theirs(cls, version, _encode(message, version))
        _compare(message, theirs, version)


@every_version(_COMMON)
def test_we_read_what_kafka_python_writes(cls: type[Message], version: int) -> None:
    rng = Random(f"{cls.__name__}{version}")
    for _ in range(8):
        message = _sample(rng, cls, version)
        theirs = _decode_theirs(cls, version, _encode(message, version))
        assert _decode(cls, version, bytes(_encode_theirs(version, theirs))) == message


def _decode_theirs(cls: type[Message], version: int, data: bytes) -> Any:
    return _oracle(cls).decode(data, version=version)


def _encode_theirs(version: int, value: Any) -> bytes:
    if not hasattr(value, "_header"):  # a decoded message lacks what its encoder looks for
        value._header = None
    return value.encode(version=version)


def _compare(ours: Message, theirs: Any, version: int) -> None:
    for field in fields_of(type(ours), version):
        if field.present and not (field.tag is not None and getattr(ours, field.name) == field.default):
            _same(
                field, field.type, getattr(ours, field.name), getattr(theirs, _their_name(theirs, field.name)), version
            )


def _their_name(theirs: Any, name: str) -> str:
    return _OPERATIONS if name.endswith(_OPERATIONS) and not hasattr(theirs, name) else name


def _same(field: Field, kind: Type, ours: Any, theirs: Any, version: int) -> None:
    if ours is None:
        assert theirs is None, field.name
    elif kind.kind is Kind.ARRAY:
        assert kind.element is not None
        assert len(ours) == len(theirs), field.name
        for mine, other in zip(ours, theirs, strict=True):
            _same(field, kind.element, mine, other, version)
    elif kind.kind is Kind.STRUCT:
        _compare(ours, theirs, version)
    elif kind.kind is Kind.UUID:
        assert ours == (theirs if isinstance(theirs, bytes) else theirs.bytes), field.name
    elif kind.kind in (Kind.BYTES, Kind.RECORDS):
        assert bytes(ours) == bytes(theirs), field.name
    elif field.name.endswith(_OPERATIONS) and kind.kind is Kind.INT32 and not isinstance(theirs, int):
        assert theirs == (None if ours == OPERATIONS_NOT_ASKED else {bit for bit in range(32) if ours >> bit & 1})
    else:
        assert ours == theirs, field.name


@every_version([case for case in _COMMON if issubclass(case[0], Request)])
def test_kafka_python_agrees_on_request_headers(cls: type[Message], version: int) -> None:
    for client_id in (None, "", "kafka-python"):
        ours = encode_request_header(cls.API_KEY, version, 77, client_id)
        theirs = _oracle(cls)(version=version)
        theirs.with_header(correlation_id=77, client_id=client_id)
        assert theirs.encode_header(flexible=_oracle(cls).flexible_version_q(version)) == ours
        parsed = parse_request_header(ours + b"body", 0, len(ours) + 4)
        assert (parsed.api_key, parsed.api_version, parsed.correlation_id) == (cls.API_KEY, version, 77)
        assert (parsed.client_id, parsed.body_pos) == (client_id, len(ours))


@every_version([case for case in _COMMON if issubclass(case[0], Response)])
def test_kafka_python_agrees_on_response_headers(cls: type[Message], version: int) -> None:
    theirs = _oracle(cls)(version=version)
    theirs.with_header(correlation_id=-5)
    encoded = theirs.encode_header(flexible=_oracle(cls).flexible_version_q(version))
    assert encoded == response_header_bytes(cls.API_KEY, version, -5)
