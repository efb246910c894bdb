"""Record batches that are bent and then mended enough to be looked into.

A batch with one changed byte is refused for its checksum, and nothing behind that check would ever be tried. So most
mutations here are made inside, at the header's fields, the compressed bytes or the records before compression, and
then length and checksum are put right again, as an enemy would.
"""

import struct
from random import Random

from crc32c import crc32c
from fuzz_mutation import CLAIMS, scramble

from millstream.wire.batch import CRC_START, HEADER, HEADER_BYTES
from millstream.wire.compression import compress, decompress
from millstream.wire.errors import BatchError
from millstream.wire.records import build_batch, control_record
from millstream.wire.varint import uvarint, varlong

_FIELDS = ("q", "i", "i", "b", "I", "h", "i", "q", "q", "q", "h", "i", "i")
_WIDTHS = tuple(struct.calcsize(">" + code) for code in _FIELDS)
_PLACES = tuple(sum(_WIDTHS[:i]) for i in range(len(_WIDTHS)))
_ATTRIBUTES_AT = 21


def samples() -> list[bytes]:
    """Batches of every codec, of clients' and of brokers' kinds."""
    records = [(b"key-%d" % i, b"value " * i, [("header", b"x"), ("other", None)], 1000 + i) for i in range(8)]
    bare = [(None, b"", [], 5), (b"", None, [], 5), (None, None, [("", b"")], -1)]
    made = [build_batch(rows, compression=codec) for codec in range(5) for rows in (records, bare)]
    made += [
        build_batch(records[:1], producer_id=7, producer_epoch=1, base_sequence=3, transactional=True),
        build_batch([control_record(1, 0, 5)], control=True, producer_id=7, producer_epoch=1),
        build_batch(records, log_append_time=77),
        build_batch(records, compression=3, base_offset=1 << 40, leader_epoch=5),
    ]
    return made


def mend(batch: bytearray, length: bool = True) -> bytes:
    """Length and checksum as they must be."""
    if len(batch) >= HEADER_BYTES:
        if length:
            struct.pack_into(">i", batch, 8, len(batch) - 12)
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[CRC_START:])))
    return bytes(batch)


def bend_batch(rng: Random, batch: bytes, others: list[bytes]) -> bytes:
    """One batch, or a run of them, changed inside and mostly mended."""
    choice = rng.randrange(10)
    if len(batch) < HEADER_BYTES or choice == 0:
        return scramble(rng, batch, others)
    bent = bytearray(batch)
    if choice <= 3:
        for _ in range(rng.randint(1, 3)):
            _bend_header(rng, bent)
        return mend(bent, length=rng.random() < 0.6) if rng.random() < 0.85 else bytes(bent)
    if choice <= 5:
        bent[HEADER_BYTES:] = scramble(rng, bytes(bent[HEADER_BYTES:]))
        return mend(bent)
    if choice <= 8:
        return _bend_records(rng, bent)
    return _bend_run(rng, batch, others)


def _bend_header(rng: Random, batch: bytearray) -> None:
    field = rng.randrange(len(_FIELDS))
    width = _WIDTHS[field]
    bits = 8 * width
    value = rng.choice(
        (0, 1, (1 << bits) - 1, 1 << bits - 1, (1 << bits - 1) - 1, rng.choice(CLAIMS), rng.getrandbits(bits))
    )
    batch[_PLACES[field] : _PLACES[field] + width] = (value % (1 << bits)).to_bytes(width, "big")


def _bend_records(rng: Random, batch: bytearray) -> bytes:
    """Change the records before compression, and compress again (perhaps with another codec)."""
    codec = batch[_ATTRIBUTES_AT + 1] & 7
    try:
        records = decompress(codec, bytes(batch[HEADER_BYTES:]), 1 << 20)
    except BatchError:
        return mend(batch)
    match rng.randrange(5):
        case 0:
            records = scramble(rng, records)
        case 1:
            records = records * rng.choice((2, 3, 50))
        case 2:
            records = hostile_record(rng) + records
        case 3:
            records = records[: rng.randrange(len(records) + 1)]
        case _:
            at = rng.randrange(len(records) + 1)
            records = records[:at] + spelled_long(rng) + records[at + 1 :]
    if rng.random() < 0.3:
        codec = rng.randrange(5)
        batch[_ATTRIBUTES_AT + 1] = batch[_ATTRIBUTES_AT + 1] & 0xF8 | codec
    batch[HEADER_BYTES:] = compress(codec, records[: 48 << 10])
    return mend(batch)


def hostile_record(rng: Random) -> bytes:
    """A record whose numbers claim much."""
    claim = rng.choice((0, -1, -2, 1, 127, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -(1 << 63)))
    fields = [varlong(0), varlong(0), varlong(-1), varlong(3) + b"abc", varlong(0)]
    fields[rng.randrange(len(fields))] = varlong(claim)
    body = b"\0" + b"".join(fields)
    size = len(body) if rng.random() < 0.8 else rng.choice((0, -1, 1 << 20, (1 << 31) - 1))
    return varlong(size) + body


def spelled_long(rng: Random) -> bytes:
    """A varint of too many bytes, or with bits that no number has."""
    return rng.choice(
        (b"\x80" * rng.randint(1, 12) + b"\x01", b"\xff" * rng.randint(4, 11) + b"\x7f", uvarint(1 << 32))
    )


def _bend_run(rng: Random, batch: bytes, others: list[bytes]) -> bytes:
    """Several batches behind each other, the last perhaps cut or bent."""
    run = [batch, *(rng.choice(others) for _ in range(rng.randint(1, 4)))]
    rng.shuffle(run)
    if rng.random() < 0.5:
        run[-1] = scramble(rng, run[-1])
    joined = b"".join(run)
    return joined[: rng.randrange(len(joined))] if rng.random() < 0.5 else joined


def bombs(size: int = 8 << 20) -> list[bytes]:
    """Batches of a few kilobytes whose records claim, truthfully, ``size`` bytes."""
    made: list[bytes] = []
    for codec in (1, 2, 3, 4):
        payload = compress(codec, bytes(size))
        head = HEADER.pack(0, 0, -1, 2, 0, codec, 0, 0, 0, -1, -1, -1, 1)
        made.append(mend(bytearray(head + payload)))
    return made
