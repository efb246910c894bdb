"""Bending valid bytes: one field at a time, with the rest left as it was, or anywhere.

``bend`` changes one to four spans of a message: numbers to their borders, counts and lengths to claims that nothing
backs (with or without what they count following suit), varints to longer spellings, text to what is no UTF-8, elements
dropped, repeated, swapped or taken from another message, tagged fields added, ends cut. ``scramble`` knows no format.
Both are pure functions of the generator that they are given, so a seed and a number name an input.
"""

from collections.abc import Callable, Sequence
from random import Random

from fuzz_spans import Span, What

from millstream.wire.varint import uvarint

CLAIMS = (
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    1 << 20,
    (1 << 31) - 2,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
)
BYTES = (0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xC0, 0xDD, 0xDF, 0xFE, 0xFF)
NO_TEXT = (b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xe2\x82")
LARGEST = 64 << 10
"""Mutations do not grow an input beyond this."""

Edit = tuple[int, int, bytes]
"""Replace the bytes from … to … by these."""


def bend(rng: Random, data: bytes, spans: Sequence[Span], others: Sequence[bytes] = ()) -> bytes:
    """``data`` with a few of its spans changed; ``others`` are samples to splice with."""
    if not spans or rng.random() < 0.08:
        return scramble(rng, data, others)
    edits: list[Edit] = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        span = spans[rng.randrange(len(spans))]
        edits += _CHANGES[span.what](rng, data, spans, span)
    bent = apply(data, edits)
    if rng.random() < 0.06:
        bent = bent[: rng.randrange(len(bent) + 1)]
    return bent[:LARGEST]


def apply(data: bytes, edits: list[Edit]) -> bytes:
    """The edits, from the last to the first; one that reaches into what another changed is left out."""
    limit = len(data) + 1
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], edit[1]), reverse=True):
        if end <= limit:
            data = data[:start] + new + data[end:]
            limit = start
    return data


def scramble(rng: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """``data`` with changes that know no format: bytes, bits, runs taken out, doubled, put in, ends cut, a splice."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(8):
            case 0 | 1 if at < len(out):
                out[at] = rng.choice(BYTES)
            case 2 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 3:
                del out[at : at + rng.randint(1, 16)]
            case 4:
                out[at:at] = rng.randbytes(rng.randint(1, 12))
            case 5:
                out[at:at] = out[at : at + rng.randint(1, 64)]
            case 6:
                size = rng.choice((1, 2, 4, 8))
                out[at : at + size] = (rng.choice(CLAIMS) % (1 << 8 * size)).to_bytes(
                    size, rng.choice(("big", "little"))
                )
            case _:
                if others and rng.random() < 0.5:
                    other = rng.choice(others)
                    cut = rng.randrange(len(other) + 1)
                    out[at:] = other[cut : cut + LARGEST]
                elif rng.random() < 0.5:
                    del out[at:]
                else:
                    out += rng.randbytes(rng.randint(1, 20))
    return bytes(out[:LARGEST])


def read_number(data: bytes, span: Span) -> tuple[int, bool]:
    """The value of a count or length, and whether it is a varint (which says one more than it counts)."""
    raw = data[span.start : span.end]
    if is_varint(raw):
        value = 0
        for i, byte in enumerate(raw):
            value |= (byte & 0x7F) << 7 * i
        return value - 1, True
    return int.from_bytes(raw, "big", signed=True), False


def is_varint(raw: bytes) -> bool:
    """Counts and lengths of two and four bytes are fixed where they do not read as one varint."""
    return len(raw) in (1, 3, 5) or (all(byte >= 0x80 for byte in raw[:-1]) and raw[-1] < 0x80)


def spelled(value: int, raw: bytes) -> bytes:
    """A count or length, spelled as ``raw`` is."""
    if is_varint(raw):
        return uvarint(max(0, value + 1) & 0xFFFFFFFF)
    return (value % (1 << 8 * len(raw))).to_bytes(len(raw), "big")


def _number(rng: Random, data: bytes, spans: Sequence[Span], span: Span) -> list[Edit]:
    size = span.end - span.start
    bits = 8 * size
    old = int.from_bytes(data[span.start : span.end], "big")
    new = rng.choice(
        (
            0,
            1,
            (1 << bits) - 1,
            1 << bits - 1,
            (1 << bits - 1) - 1,
            old + 1,
            old - 1,
            rng.getrandbits(bits),
            rng.choice(CLAIMS),
        )
    )
    return [(span.start, span.end, (new % (1 << bits)).to_bytes(size, "big"))]


def _claim(rng: Random, data: bytes, spans: Sequence[Span], span: Span) -> list[Edit]:
    """A count or a length that nothing backs, or a number spelled longer than it must be."""
    raw = data[span.start : span.end]
    value, varint = read_number(data, span)
    if varint and rng.random() < 0.25:
        long = (
            bytes(byte | 0x80 for byte in raw)
            + b"\x80" * rng.randrange(0, 8)
            + rng.choice((b"\0", b"\1", b"\x7f", b""))
        )
        return [(span.start, span.end, long)]
    left = len(data) - span.end
    claim = rng.choice((*CLAIMS, value + 1, value - 1, value * 2, -1, -2, left, left + 1, left // 2, left // 3))
    return [(span.start, span.end, spelled(claim, raw))]


def _run(rng: Random, data: bytes, spans: Sequence[Span], span: Span) -> list[Edit]:
    """Other text or bytes; most of the time the length follows suit."""
    new = rng.choice(
        (
            b"",
            rng.choice(NO_TEXT),
            data[span.start : span.end] + rng.choice(NO_TEXT),
            rng.randbytes(rng.randint(1, 40)),
            b"a" * rng.choice((127, 128, 249, 250, 300)),
            b"\0" * rng.randint(1, 20),
            "\U0001f642".encode() * rng.randint(1, 40),
            data[span.start : span.end] * 2,
        )
    )
    if rng.random() < 0.02:
        new = b"b" * rng.choice((32767, 32768, 40000))
    return _resized(rng, data, spans, span, new)


def _resized(rng: Random, data: bytes, spans: Sequence[Span], span: Span, new: bytes) -> list[Edit]:
    edits: list[Edit] = [(span.start, span.end, new)]
    if rng.random() < 0.85:
        length = spans[span.parent]
        edits.append((length.start, length.end, spelled(len(new), data[length.start : length.end])))
    return edits


def _records(rng: Random, data: bytes, spans: Sequence[Span], span: Span) -> list[Edit]:
    return _resized(rng, data, spans, span, scramble(rng, data[span.start : span.end]))


def _item(rng: Random, data: bytes, spans: Sequence[Span], span: Span) -> list[Edit]:
    """An element dropped, repeated or taken from elsewhere in the message; most of the time the count follows suit."""
    count = spans[span.parent]
    value, _ = read_number(data, count)
    item = data[span.start : span.end]
    match rng.randrange(4):
        case 0:
            new, grown = b"", -1
        case 1:
            times = rng.choice((2, 2, 3, 10, 100, 1000))
            times = max(1, min(times, LARGEST // (len(item) or 1)))
            new, grown = item * times, times - 1
        case 2:
            others = [other for other in spans if other.what is What.ITEM]
            other = rng.choice(others)
            new, grown = data[other.start : other.end], 0
        case _:
            new, grown = scramble(rng, item), 0
    edits: list[Edit] = [(span.start, span.end, new)]
    if rng.random() < 0.9:
        edits.append((count.start, count.end, spelled(value + grown, data[count.start : count.end])))
    return edits


def _tags(rng: Random, data: bytes, spans: Sequence[Span], span: Span) -> list[Edit]:
    """More tagged fields than there were, known and unknown ones, in order or not; or a claim."""
    if rng.random() < 0.4:
        return _claim(rng, data, spans, span)
    value = read_number(data, span)[0] + 1
    added = rng.choice((1, 1, 2, 5, 50, 500))
    fields = b"".join(_tagged_field(rng) for _ in range(added))
    return [(span.start, span.end, uvarint((value + added) & 0xFFFFFFFF) + fields)]


def _tagged_field(rng: Random) -> bytes:
    content = rng.randbytes(rng.choice((0, 0, 1, 2, 8, 30)))
    return uvarint(rng.choice((0, 1, 2, 3, 127, 10000, (1 << 32) - 1))) + uvarint(len(content)) + content


def _tag(rng: Random, data: bytes, spans: Sequence[Span], span: Span) -> list[Edit]:
    """A tagged field twice, or gone though it is counted, or bent."""
    field = data[span.start : span.end]
    count = spans[span.parent]
    match rng.randrange(3):
        case 0:
            value = read_number(data, count)[0] + 1
            return [(span.start, span.end, field * 2), (count.start, count.end, uvarint(value + 1))]
        case 1:
            return [(span.start, span.end, b"")]
        case _:
            return [(span.start, span.end, scramble(rng, field))]


def _presence(rng: Random, data: bytes, spans: Sequence[Span], span: Span) -> list[Edit]:
    return [(span.start, span.end, bytes((rng.choice((0, 1, 0x7F, 0x80, 0xFF)),)))]


_CHANGES: dict[What, Callable[[Random, bytes, Sequence[Span], Span], list[Edit]]] = {
    What.NUMBER: _number,
    What.COUNT: _claim,
    What.LENGTH: _claim,
    What.RUN: _run,
    What.RECORDS: _records,
    What.ITEM: _item,
    What.TAGS: _tags,
    What.TAG: _tag,
    What.PRESENCE: _presence,
}
