"""What decoding a request may take: charged before it is made, and never above the bound that the decoder states."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from allocation import largest_bytes, largest_kept_bytes, peak_bytes, without_lines

from millstream.wire.apis import APIS
from millstream.wire.codec import decode_request, encode_message, request_decoder
from millstream.wire.decoding import ELEMENT_BYTES_MIN, OBJECT_BYTES_MAX, ROOM_LEFT, TINY_MAX, object_bytes
from millstream.wire.errors import ProtocolError
from millstream.wire.records import build_batch, iter_records
from millstream.wire.schema import Kind, Message, Type, fields_of

ELEMENTS = 300
SLACK = 16 << 10
SINGLE_SLACK = 64 << 10
PER_BYTE = 56
"""An empty array is one byte, and a list of 56."""
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


def peak_of(key: int, version: int, data: bytes, limit: int) -> int:
    """``ROOM_LEFT`` says afterwards what the last decoding left."""

    def decode() -> None:
        ROOM_LEFT[0] = 0
        decode_request(key, version, data, 0, len(data))

    with without_lines(request_decoder(key, version)):
        return peak_bytes(decode, limit)


@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_what_a_request_is_decoded_to_is_charged_and_is_bounded(key: int) -> None:
    api = APIS[key]
    for version in {api.versions[0], api.versions[1]}:
        for counts in crowds(api.request, version):
            for texts in (False, True):
                data = bytes(encode_message(build(api.request, version, counts, texts), version))
                limit = PER_BYTE * len(data) + SLACK
                peak = peak_of(key, version, data, limit)
                assert peak <= limit, (version, counts)
                if api.name != "Produce":
                    assert peak <= OBJECT_BYTES_MAX - ROOM_LEFT[0] + 4 * len(data) + SLACK, (version, counts)


def test_no_request_becomes_more_than_four_times_its_bytes_and_what_is_charged_at_most() -> None:
    cls, version = APIS[19].request, APIS[19].versions[1]
    full = refused = 0
    for elements in (18_000, 19_000, 20_000):
        message = build(cls, version, {("topics",): elements, ("topics", "assignments"): 0}, texts=True)
        data = bytes(encode_message(message, version))
        try:
            limit = 4 * len(data) + OBJECT_BYTES_MAX + SLACK
            assert peak_of(19, version, data, limit) <= limit
            full += 1
        except ProtocolError:
            refused += 1
    assert full
    assert refused


def element(cls: type[Message], path: Path) -> Type:
    """The type of an array's elements."""
    kind = next(field.type for field in fields_of(cls, cls.VERSIONS[1]) if field.name == path[0])
    kind = kind.element or kind
    return kind if len(path) == 1 else element(kind.struct, path[1:])  # type: ignore[arg-type]


def tiny() -> Iterator[tuple[int, int, int, dict[Path, int]]]:
    """Of every kind of array whose elements may take one or two bytes each, one: key, version, bytes, path."""
    seen: set[tuple[object, bool]] = set()
    for key, api in APIS.items():
        for version in {api.versions[0], api.versions[1]} if api.name != "Produce" else ():
            for path in arrays(api.request, version):
                above = {path[:end]: 1 for end in range(1, len(path))}
                one, nine = (
                    len(encode_message(build(api.request, version, {**above, path: count}, texts=False), version))
                    for count in (1, 9)
                )
                kind = ((nine - one) // 8, version >= api.flexible)
                if kind[0] <= 2 and kind not in seen:
                    seen.add(kind)
                    yield key, version, kind[0], {**above, path: 0}


@pytest.mark.parametrize(("key", "version", "size", "path"), tiny())
def test_no_request_asks_for_more_than_four_times_its_bytes_at_once(
    key: int, version: int, size: int, path: dict[Path, int]
) -> None:
    """However many elements of a byte or two there are: their list is the largest piece."""
    *_, last = path
    charge = max(ELEMENT_BYTES_MIN, 10 + object_bytes(element(APIS[key].request, last), version))
    most = (OBJECT_BYTES_MAX - 4096) // charge
    for count, taken in ((TINY_MAX, True), (TINY_MAX + 9, size > 1), (most, size > 1)):
        data = bytes(encode_message(build(APIS[key].request, version, {**path, last: count}, texts=False), version))
        if not taken:
            with pytest.raises(ProtocolError, match="less than two bytes each"):
                decode_request(key, version, data, 0, len(data))
            continue
        with without_lines(request_decoder(key, version)):
            found = largest_kept_bytes(partial(decode_request, key, version, data, 0, len(data)))
        assert 8 * count <= found <= 4 * len(data) + SINGLE_SLACK


@pytest.mark.slow
def test_very_many_headers_of_a_record_are_no_more_than_four_times_their_bytes_at_once() -> None:
    """The smallest has two bytes: an empty name and no value."""
    batch = build_batch([(None, b"", [("", None)] * 70_000, 5)])
    single = 4 * len(batch) + SINGLE_SLACK
    assert largest_bytes(lambda: list(iter_records(batch)), single, "_record") <= single


def test_a_piece_that_is_too_large_is_seen() -> None:
    def grows() -> list[int]:
        found: list[int] = []
        for _ in range(20_000):
            found.append(0)  # noqa: PERF401 - as the decoders do
        return found

    assert 160_000 <= largest_bytes(grows, 100_000) < 190_000
