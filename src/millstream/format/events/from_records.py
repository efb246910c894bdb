"""Records of Kafka's producers as events.

A produced record is an event with the header ``mofka.metadata`` as its metadata and the value as its data; without this
header its value is the metadata. The metadata are JSON text. Keys and other headers are not kept. The events of a batch
have its largest time, its producer and its sequence number.

Metadata that consumers could not read are refused: what is no JSON in UTF-8 (NaN, a lone surrogate and a byte order
mark are none), nesting deeper than ``NESTING_MAX``, integers of thousands of digits. Each such record is named in the
refusal, and no record of its batch is stored. Before that, the records pass the checks of ``wire.inspection``.

The code is pure and takes microseconds a record: for a helper process, and for a reactor only with few records.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from millstream.errors import Rejected
from millstream.format.events.batch import EVENTS, Producer, build_event_batch
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import TimestampMs
from millstream.wire.errors import BatchError
from millstream.wire.inspection import RECORDS_MAX, Refused, Rules, TopicKind, inspect_batch, rejected
from millstream.wire.records import Record, iter_records, unpack_header

METADATA_HEADER: Final = "mofka.metadata"

NESTING_MAX: Final = 500
"""Levels of arrays and objects. Python's JSON readers end below a thousand."""

_decode: Final = msgspec.json.Decoder().decode
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def inspect(batch: bytes, rules: Rules) -> bytes | None:
    """``wire.inspection.inspect_batch`` for a topic of any kind: the batch to store instead of ``batch``, or None to
    store it as it is. At an event topic, records become events. Header and checksum were checked before.

    Raises:
        Refused: the batch breaks a rule of the format or of the topic.
    """
    if rules.kind == TopicKind.RECORDS:
        return inspect_batch(batch, rules)
    if unpack_header(batch)[5] & EVENTS:
        return None
    if rules.kind == TopicKind.ENCODED_EVENTS:
        what = "The topic has a serializer of its own for metadata: only clients of event topics write to it."
        raise Refused(ErrorCode.INVALID_RECORD, what)
    return _as_events(inspect_batch(batch, rules) or batch)


def _as_events(batch: bytes) -> bytes:
    """A batch of records as a batch of events of the same producer and sequence."""
    header = unpack_header(batch)
    metadata: list[bytes] = []
    data: list[list[bytes]] = []
    faults: list[tuple[int, str]] = []
    try:
        for index, record in enumerate(iter_records(batch, RECORDS_MAX)):
            text, content = _parts(record)
            fault = _fault(text)
            if fault:
                faults.append((index, fault))
            elif not faults:
                metadata.append(text)
                data.append([content])
    except BatchError as error:
        raise Refused(error.code, str(error)) from error
    if faults:
        raise rejected(ErrorCode.INVALID_RECORD, faults)
    producer = Producer(header[9], header[10], header[11])
    try:
        return b"".join(build_event_batch(metadata, data, now_ms=TimestampMs(header[8]), producer=producer))
    except Rejected as error:
        raise Refused(error.code, error.message) from error


def _parts(record: Record) -> tuple[bytes, bytes]:
    """Metadata and data of the event that a record becomes."""
    given = dict(record.headers).get(METADATA_HEADER)
    return (record.value or b"", b"") if given is None else (given, record.value or b"")


def _fault(text: bytes) -> str:
    """Why consumers could not read these metadata; "" if they can."""
    try:
        _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"Its metadata are no JSON: {error}."
    except RecursionError:
        return _TOO_DEEP
    openers = text.count(b"[") + text.count(b"{")
    return _TOO_DEEP if openers > NESTING_MAX and _nesting(text) > NESTING_MAX else ""


_TOO_DEEP: Final = f"Its metadata are nested in more than {NESTING_MAX} levels."


def _nesting(text: bytes) -> int:
    """Levels of arrays and objects in a valid JSON text."""
    deepest = depth = 0
    for token in _TOKENS.finditer(text):
        match token[0]:
            case b"[" | b"{":
                depth += 1
                deepest = max(deepest, depth)
            case b"]" | b"}":
                depth -= 1
            case _:
                pass
    return deepest
