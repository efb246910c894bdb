"""What decoding a request may take: charged before it is made, and never above the bound that the decoder states."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.wire.apis import APIS
from millstream.wire.codec import decode_request, encode_message, request_decoder
from millstream.wire.decoding import OBJECT_BYTES_MAX, ROOM_LEFT
from millstream.wire.errors import ProtocolError
from millstream.wire.schema import Kind, Message, fields_of

ELEMENTS = 1000
SLACK = 16 << 10
PER_BYTE = 48
LARGE = {Kind.INT8: -100, Kind.INT16: 30000, Kind.UINT16: 30000, Kind.INT32: 1 << 30, Kind.UINT32: 1 << 30}
SMALL = {Kind.STRING: "", Kind.BYTES: b"", Kind.RECORDS: b"", Kind.BOOL: False, Kind.FLOAT64: 0.5, Kind.UUID: b"i" * 16}
TEXTS = {Kind.STRING: "ä", Kind.BYTES: b"b"}

Path = tuple[str, ...]


def arrays(cls: type[Message], version: int, above: Path = ()) -> Iterator[Path]:
    """The path of every array in a message."""
    for field in fields_of(cls, version):
        kind = field.type if field.type.element is None else field.type.element
        if field.present and field.type.element is not None:
            yield (*above, field.name)
        if field.present and kind.struct is not None:
            yield from arrays(kind.struct, version, (*above, field.name))


def build(cls: type[Message], version: int, counts: dict[Path, int], texts: bool, above: Path = ()) -> Message:
    """A message with as many elements in each array as ``counts`` says, everything else as short as it goes."""
    values: dict[str, Any] = {}
    for field in fields_of(cls, version):
        path = (*above, field.name)
        kind = field.type if field.type.element is None else field.type.element
        if kind.struct is not None:
            value: Any = build(kind.struct, version, counts, texts, path)
        else:
            value = {**LARGE, **SMALL, **(TEXTS if texts else {})}.get(kind.kind, 1 << 60)
        if field.type.element is not None:
            value = [value] * counts.get(path, 0)
        if field.present:
            values[field.name] = value
    return cls(**values)


def crowds(cls: type[Message], version: int) -> Iterator[dict[Path, int]]:
    """Messages with many elements in one array: empty ones, and ones that hold one element each."""
    found = list(arrays(cls, version))
    for path in found:
        above = [one for one in found if one == path[: len(one)]]
        for many in above:
            yield {one: ELEMENTS if one == many else 1 for one in above}


def peak_of(key: int, version: int, data: bytes) -> int:
    tracemalloc.start()
    try:
        decoded = decode_request(key, version, data, 0, len(data))
        assert decoded is not None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_what_a_request_is_decoded_to_is_charged_and_is_bounded(key: int) -> None:
    api = APIS[key]
    for version in {api.versions[0], api.versions[1]}:
        request_decoder(key, version)
        for counts in crowds(api.request, version):
            for texts in (False, True):
                data = bytes(encode_message(build(api.request, version, counts, texts), version))
                ROOM_LEFT[0] = 0
                peak = peak_of(key, version, data)
                assert peak <= PER_BYTE * len(data) + SLACK, (version, counts)
                if api.name != "Produce":
                    assert peak <= OBJECT_BYTES_MAX - ROOM_LEFT[0] + 4 * len(data) + SLACK, (version, counts)


def test_no_request_becomes_more_than_four_times_its_bytes_and_what_is_charged_at_most() -> None:
    cls, version = APIS[19].request, APIS[19].versions[1]
    full = refused = 0
    for elements in (18_000, 19_000, 20_000):
        message = build(cls, version, {("topics",): elements, ("topics", "assignments"): 0}, texts=True)
        data = bytes(encode_message(message, version))
        try:
            assert peak_of(19, version, data) <= 4 * len(data) + OBJECT_BYTES_MAX + SLACK
            full += 1
        except ProtocolError:
            refused += 1
    assert full
    assert refused
