"""The files of a data directory as targets: bent inside their seals, so that the reader behind the checksum is
reached.

What a disk gives back wrong is refused by a checksum, nearly always. These inputs are what the checksum does not
catch: files of another release, of a foreign hand, of a defect of ours. A reader says ``Corruption``, or reports what
it found where it promises to raise nothing.
"""

import struct
from array import array
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import msgspec
from crc32c import crc32c
from fuzz_batches import bend_batch, samples
from fuzz_mutation import BYTES, CLAIMS, scramble

from millstream.cluster import state_files
from millstream.core.access.entry import AclEntry
from millstream.core.controller.commands import (
    AclsDeleted,
    BrokerRegistered,
    BrokerReplaced,
    Command,
    FeatureLevelRaised,
    PartitionsAdded,
    PartitionState,
    ReplicaChange,
    TopicDeleted,
    UserRemoved,
    decode_command,
    encode_command,
    level_of,
)
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.state import ControllerState
from millstream.core.producer_state import ProducerBudget, ProducerState
from millstream.core.quota.limits import Entity
from millstream.format import epochs, index, producers, segment, wal, wal_scan
from millstream.format.names import parse_offset, parse_wal_name
from millstream.model.cluster import BrokerEpoch, FeatureLevel, Incarnation, NodeId
from millstream.storage.recovery import summary
from millstream.wire.sasl import Verifier

SEALED_HEAD = 16
_DEEP = 2000

Mutate = Callable[[Random, bytes], bytes]


class Format(NamedTuple):
    """One reader of a file."""

    name: str
    run: Callable[[bytes], object]
    seeds: list[bytes]
    mutate: Mutate
    constant: int = 64 << 10


def formats() -> list[Format]:
    """Every file format."""
    return [
        _sealed("file epochs", epochs.decode_log_state, _epochs()),
        _sealed("file wal state", wal.decode_wal_state, _wal_states()),
        _sealed("file producers file", lambda data: producers.decode_producers(77, data), [_producers_file()]),
        _resummed("file producers", _load_producers, [_producers()], _sum_producers),
        _resummed("file controller snapshot", _read_snapshot, _snapshots(), _sum_snapshot),
        _plain("file controller command", decode_command, _commands()),
        _plain("file summaries", summary.decode_summaries, _summaries()),
        _resummed("file index", lambda data: index.scan_index(data, 1000), [_index()], _sum_index),
        _resummed("file wal file", _scan_wal, [_wal_file()], _sum_wal),
        Format("file segment", _walk_segment, _segments(), lambda rng, data: bend_batch(rng, data, samples())),
        Format("file name", _read_name, [b"00000000000000000042.log", b"00000007.wal"], scramble),
    ]


def bend_msgpack(rng: Random, data: bytes) -> bytes:
    """MessagePack with other types, larger claims, deeper nests, no text where text is due."""
    match rng.randrange(6):
        case 0:
            return scramble(rng, data)
        case 1:
            at = rng.randrange(len(data) + 1)
            head = rng.choice((0xC6, 0xDB, 0xDD, 0xDF))
            return data[:at] + bytes((head,)) + rng.choice(CLAIMS).to_bytes(4, "big") + data[at:]
        case 2:
            at = rng.randrange(len(data) + 1)
            return data[:at] + bytes((rng.choice((0x91, 0x81)),)) * rng.choice((1, 10, _DEEP)) + data[at:]
        case 3:
            at = rng.randrange(max(1, len(data)))
            return data[:at] + bytes((rng.choice((*BYTES, 0xCB, 0xCF, 0xD3, 0xC0, 0xC7)),)) + data[at + 1 :]
        case 4:
            at = rng.randrange(len(data) + 1)
            return data[:at] + b"\xcf" + rng.randbytes(8) + data[at + 1 :]
        case _:
            values = msgspec.msgpack.decode(data) if data else None
            return msgspec.msgpack.encode(_bend_value(rng, values))


def _bend_value(rng: Random, value: object) -> object:
    """The same tree with one value of it another."""
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _bend_value(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return {**value, key: _bend_value(rng, value[key])}
    odd: tuple[object, ...] = (
        -1,
        0,
        1 << 31,
        (1 << 63) - 1,
        -(1 << 63),
        (1 << 64) - 1,
        "",
        "x",
        b"",
        None,
        [],
        {},
        1.5,
        True,
    )
    return rng.choice(odd)


def _inner(rng: Random, data: bytes) -> bytes:
    try:
        return bend_msgpack(rng, data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return scramble(rng, data)


def _plain(name: str, run: Callable[[bytes], object], seeds: list[bytes]) -> Format:
    return Format(name, run, seeds, _inner)


def _sealed(name: str, run: Callable[[bytes], object], seeds: list[bytes]) -> Format:
    """A file of ``format.sealed``, bent inside and sealed again."""

    def mutate(rng: Random, data: bytes) -> bytes:
        if len(data) < SEALED_HEAD or rng.random() < 0.15:
            return scramble(rng, data, seeds)
        head = bytearray(data[:12])
        payload = _inner(rng, data[SEALED_HEAD:])
        if rng.random() < 0.1:
            head[rng.randrange(8)] ^= 1
        head[8:12] = (len(payload) & 0xFFFFFFFF).to_bytes(4, "little")
        return bytes(head) + crc32c(payload, crc32c(bytes(head))).to_bytes(4, "little") + payload

    return Format(name, run, seeds, mutate)


def _resummed(
    name: str, run: Callable[[bytes], object], seeds: list[bytes], mend: Callable[[Random, bytearray], bytes]
) -> Format:
    """A file whose checksums ``mend`` puts right after the change."""

    def mutate(rng: Random, data: bytes) -> bytes:
        bent = scramble(rng, data, seeds) if rng.random() < 0.5 else _fields(rng, data)
        return mend(rng, bytearray(bent)) if rng.random() < 0.9 else bent

    return Format(name, run, seeds, mutate)


def _fields(rng: Random, data: bytes) -> bytes:
    """Numbers of two to eight bytes put to their borders."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        size = rng.choice((2, 4, 8))
        if len(out) < size:
            break
        at = rng.randrange(0, len(out) - size + 1, rng.choice((1, 2, 4)))
        out[at : at + size] = (rng.choice(CLAIMS) % (1 << 8 * size)).to_bytes(size, rng.choice(("big", "little")))
    return bytes(out)


def _epochs() -> list[bytes]:
    return [
        epochs.encode_log_state(epochs.LogState(start, rising, vote=vote, controls=controls))
        for start, rising, vote, controls in (
            (0, (), epochs.StoredVote(), ()),
            (500, ((0, 0), (1, 20), (7, 400)), epochs.StoredVote(8, 2), (epochs.StoredControl(400, 400, 7, b"x"),)),
        )
    ]


def _wal_states() -> list[bytes]:
    return [
        wal.encode_wal_state(wal.WalState()),
        wal.encode_wal_state(wal.WalState(99, 4, True, summary.encode_summaries(_logs()))),
    ]


def _logs() -> list[summary.LogSummary]:
    segments = (index.SegmentSummary(0, 10, 1000, 5, 9, 3, 1, True), index.SegmentSummary(10, 12, 100))
    return [
        summary.LogSummary(0, epochs.LogState(), (), None, ()),
        summary.LogSummary(3, epochs.LogState(1, ((0, 0),), b"v"), segments, (12, b"producers"), (10, 12)),
    ]


def _summaries() -> list[bytes]:
    return [summary.encode_summaries(_logs()), summary.encode_summaries(_logs()[:1])]


def _producer_state() -> ProducerState:
    return ProducerState(1 << 40, ProducerBudget(1000))


def _producers() -> bytes:
    head = struct.pack(">BI", 1, 2)
    one = (
        struct.pack(">qhiqB", 7, 1, 30, 1000, 2)
        + struct.pack(">iiqq", 10, 10, 100, 5)
        + struct.pack(">iiqq", 20, 10, 110, 5)
    )
    return _sum_producers(Random(), bytearray(head + one + struct.pack(">qhiqB", 8, 0, 0, 1000, 0) + bytes(4)))


def _sum_producers(_rng: Random, data: bytearray) -> bytes:
    data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "big")
    return bytes(data)


def _load_producers(data: bytes) -> None:
    state = _producer_state()
    state.load(data)
    assert state.snapshot()


def _producers_file() -> bytes:
    return producers.encode_producers(77, _producers())


_PROFILE = BrokerProfile(
    (ListenerAddress("PLAINTEXT", "h", 9092),), PeerAddress("h", 33145), "r", 2, "0.1.0", FeatureLevel(1)
)


def _snapshots() -> list[bytes]:
    state = ControllerState()
    made = [state_files.pack_snapshot(state)]
    for command in _all_commands():
        # The Raft groups of added partitions are the topic's here, brokers come below, and what was made stays.
        left_out = (PartitionsAdded, FeatureLevelRaised, UserRemoved, AclsDeleted)
        if not isinstance(command, left_out) and not level_of(command):
            state.apply(command)
    made.append(state_files.pack_snapshot(state))
    state.apply(FeatureLevelRaised(FeatureLevel(1)))
    for node in (NodeId(1), NodeId(2)):
        state.apply(BrokerRegistered(node, Incarnation(bytes([node]) * 16), _PROFILE))
    state.apply(BrokerReplaced(NodeId(2), Incarnation(b"\2" * 16), Incarnation(b"\3" * 16), _PROFILE))
    return [*made, state_files.pack_snapshot(state)]


def _all_commands() -> list[Command]:
    """One command of every kind; values by the types that the fields say."""
    partitions = (PartitionState(1, (1,), 1), PartitionState(2, (1, 2), 1, 3))
    by_type: dict[object, object] = {
        str: "topic",
        int: 5,
        bytes: bytes(15) + b"\7",
        NodeId: 5,
        BrokerEpoch: 6,
        FeatureLevel: 1,
        Incarnation: bytes(16),
        BrokerProfile: _PROFILE,
        tuple[ReplicaChange, ...]: (ReplicaChange(0, (1, 2)),),
        tuple[PartitionState, ...]: partitions,
        tuple[AclEntry, ...]: (AclEntry(2, 3, "topic", "User:a", "*", 3, 3),),
        Verifier: Verifier(b"salt", bytes(32), bytes(32), 4096),
        Entity: (("client-id", None), ("user", "a")),
        dict[str, float | None]: {"consumer_byte_rate": 1e6, "producer_byte_rate": None},
    }
    made: list[Command] = []
    for cls in sorted(Command.__subclasses__(), key=lambda one: (one.__name__ != "TopicCreated", one.__name__)):
        values = {}
        for field in msgspec.structs.fields(cls):
            if field.required:
                values[field.name] = by_type.get(field.type, {"retention.ms": "9"})
        made.append(cls(**values))
    return [one for one in made if type(one).__name__ != "TopicDeleted"]


def _sum_snapshot(rng: Random, data: bytearray) -> bytes:
    head = 16
    if len(data) < head:
        return bytes(data)
    payload = _inner(rng, bytes(data[head:])) if rng.random() < 0.5 else bytes(data[head:])
    return struct.pack("<4sIQ", b"MSC1", crc32c(payload), len(payload)) + payload


def _read_snapshot(data: bytes) -> None:
    state_files.pack_snapshot(state_files.unpack_snapshot(bytearray(data)))


def _commands() -> list[bytes]:
    return [encode_command(one) for one in [*_all_commands(), TopicDeleted(bytes(16), "topic")]]


def _index() -> bytes:
    one = index.SegmentSummary(1000, 1100, 5000, 5, 50, 1050, 9)
    blocks = index.encode_block(one, array("q", [1000, 1040]), array("q", [0, 2000]), array("q", [-1, 20]))
    two = msgspec.structs.replace(one, end_offset=1200, size_bytes=9000, sealed=True)
    return blocks + index.encode_block(two, array("q", [1100]), array("q", [5000]), array("q", [50]))


def _sum_index(_rng: Random, data: bytearray) -> bytes:
    """Every block as long as its count says, with its checksum."""
    at = 0
    while at + index.HEADER_BYTES <= len(data):
        count = int.from_bytes(data[at + 8 : at + 12], "little")
        until = at + index.HEADER_BYTES + count * index.ENTRY_BYTES
        if until > len(data):
            count = (len(data) - at - index.HEADER_BYTES) // index.ENTRY_BYTES
            until = at + index.HEADER_BYTES + count * index.ENTRY_BYTES
            data[at + 8 : at + 12] = count.to_bytes(4, "little")
        data[at + 4 : at + 8] = crc32c(bytes(data[at + 8 : until])).to_bytes(4, "little")
        at = until
    return bytes(data)


def _wal_file() -> bytes:
    """A file of three frames, with a batch, a note and nothing in them, and room behind."""
    out = bytearray(wal.encode_file_header(wal.FileHeader(0, 3, 10, 16384)))
    batch = samples()[0]
    for sequence, payloads in ((10, [batch]), (11, [batch, b"control"]), (12, [])):
        table = b"".join(_wal_record(payload) for payload in payloads)
        payload = b"".join(payloads)
        slot = bytearray(2 * wal.FRAME_HEAD_BYTES + len(table))
        slot[wal.FRAME_HEAD_BYTES : wal.FRAME_HEAD_BYTES + len(table)] = table
        place = (3, sequence, sequence - 1, 10, len(out))
        wal.pack_heads(memoryview(slot), len(payloads), len(payload), *place)
        cut = wal.FRAME_HEAD_BYTES + len(table)
        padding = bytes(wal.padding_bytes(len(payloads), len(payload), len(out)))
        out += slot[:cut] + payload + padding + slot[wal.FRAME_HEAD_BYTES :]
    return bytes(out) + bytes(1024)


def _wal_record(payload: bytes) -> bytes:
    if payload == b"control":
        return wal.RECORD.pack(wal.Kind.CONTROL, 0, 0, 5, 1, 0, 0, len(payload), crc32c(payload))
    base, _, epoch = segment.BATCH_PREFIX.unpack_from(payload)
    crc = int.from_bytes(payload[17:21], "big")
    return wal.RECORD.pack(wal.Kind.BATCH, 0, 0, 5, epoch, base, base + 7, len(payload), crc)


def _sum_wal(_rng: Random, data: bytearray) -> bytes:
    """Heads, tails and the file's header with the checksums that they should have."""
    size = wal.FILE_HEADER.size
    if len(data) >= size + 4:
        data[size : size + 4] = crc32c(bytes(data[:size])).to_bytes(4, "little")
    for sector in range(wal.SECTOR_BYTES, len(data), wal.SECTOR_BYTES):
        for at, magic in ((sector, wal.HEAD_MAGIC), (sector - wal.FRAME_HEAD_BYTES, wal.TAIL_MAGIC)):
            if data[at : at + 4] == magic.to_bytes(4, "little") and at + wal.FRAME_HEAD_BYTES <= len(data):
                data[at + 4 : at + 8] = crc32c(bytes(data[at + 8 : at + wal.FRAME_HEAD_BYTES])).to_bytes(4, "little")
    return bytes(data)


def _scan_wal(data: bytes) -> None:
    """Nothing that a disk holds makes the reader raise."""
    one = wal_scan.scan(memoryview(data))
    verdict = wal_scan.judge([one, one], wal.WalState(5, 2))
    for file, place in verdict.order:
        for _ in [one, one][file].frames[place].records():
            pass


def _segments() -> list[bytes]:
    joined = b"".join(samples()[:6])
    return [*samples(), joined, joined[:-30]]


def _walk_segment(data: bytes) -> None:
    for _ in segment.walk(data):
        pass


def _read_name(data: bytes) -> None:
    text = data.decode("latin-1")
    parse_offset(text, ".log")
    parse_wal_name(text)


__all__ = ["Format", "formats"]
