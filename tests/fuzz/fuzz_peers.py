"""Frames between brokers: heads bent behind a checksum that is right, hellos, probes, refusals, and blind bytes."""

import struct
from random import Random

from crc32c import crc32c
from fuzz_events import event_formats
from fuzz_formats import Format, bend_msgpack, formats
from fuzz_mutation import scramble

from millstream.core.raft.messages import (
    Append,
    AppendRejected,
    AppendReply,
    Configuration,
    ControlEntry,
    InstallOffer,
    LogPoint,
    LogStart,
    NewerTerm,
    Opaque,
    TermRun,
    TermStart,
    VoteReply,
    VoteRequest,
)
from millstream.peers.contact_items import Followed, Led, LedAgain
from millstream.peers.frames import HEADER_BYTES, FrameKind, check_body, check_head, decode_header, encode_frame
from millstream.peers.hello import (
    Founder,
    Hello,
    Probe,
    Refusal,
    Seed,
    decode_hello,
    decode_probe,
    decode_refusal,
    encode_hello,
    encode_probe,
    encode_refusal,
)
from millstream.peers.items import (
    Answer,
    Beat,
    Beats,
    BeatsAgain,
    Call,
    Failure,
    Home,
    Item,
    Leaders,
    Leadership,
    Status,
    decode_items,
    encode_item,
)
from millstream.peers.raft_items import RaftItem

DISK = bytes(range(16))
MEMBERS = Configuration((1, 2, 3), (), (4,))
CONTROLS = tuple(
    ControlEntry(4 + n, 3, one) for n, one in enumerate((TermStart(), MEMBERS, LogStart(5), Opaque(1, b"x")))
)
ITEMS: tuple[Item, ...] = (
    RaftItem(7, Append(3, LogPoint(4, 2), (TermRun(6, 3), TermRun(9, 4)), CONTROLS, 4, 5, 9), 0, 5),
    RaftItem(7, VoteRequest(3, LogPoint(4, 2), True, False), 5),
    RaftItem(7, VoteReply(3, True, False), 5),
    RaftItem(7, AppendReply(3, 9, 8, 7), 5),
    RaftItem(7, AppendRejected(3, 9, LogPoint(4, 2), 7), 5),
    RaftItem(7, InstallOffer(3, LogPoint(4, 2), MEMBERS, 7), 5),
    RaftItem(7, NewerTerm(4), 5),
    Beats(False, (Beat(1, 2, 3, 4, 5), Beat(2, 2, 3, 4, 5))),
    BeatsAgain(True, 1),
    Leaders(True, (Leadership(7, 3, 1),)),
    Call(1, 2, 3000, b"payload"),
    Answer(1, b"payload"),
    Failure(1, 2, 3, "words"),
    Status(1, 2, 3),
    Home(7, 1),
    Led(3, 4, (7, 9), (1, 2)),
    LedAgain(3, 4),
    Followed(3, 4, False, (9,)),
)


def every_format() -> list[Format]:
    """Files, frames of peers, and the bytes of event topics."""
    return [*formats(), *peer_formats(), *event_formats()]


def peer_formats() -> list[Format]:
    """Everything that a peer sends."""
    head = b"".join(map(encode_item, ITEMS))
    frame = b"".join(encode_frame(FrameKind.TURN, [head], [b"batch"]))
    hello = b"".join(encode_hello(Hello(1, 1, "cluster", 2, DISK, 1, 0, 2, 1, "0.1.0")))
    founders = (Founder(1, DISK, Seed("a", 1)), Founder(2, DISK, Seed("b", 1)))
    probe = b"".join(encode_probe(Probe(founders[1], (Seed("a", 1),), "", founders, 1, "0.1.0")))
    refusal = b"".join(encode_refusal(Refusal(1, "words")))
    return [
        Format("peer items", lambda data: decode_items(data, 5), [head, *map(encode_item, ITEMS)], scramble),
        Format("peer frame", _read_frame, [frame], _bend_frame),
        Format("peer hello", decode_hello, [hello[HEADER_BYTES:]], bend_msgpack),
        Format("peer probe", decode_probe, [probe[HEADER_BYTES:]], bend_msgpack),
        Format("peer refusal", decode_refusal, [refusal[HEADER_BYTES:]], bend_msgpack),
    ]


def _read_frame(data: bytes) -> None:
    if len(data) < HEADER_BYTES:
        return
    header = decode_header(data)
    if len(data) < HEADER_BYTES + header.head_bytes + header.body_bytes:
        return
    head = check_head(header, data)
    begin = HEADER_BYTES + header.head_bytes
    check_body(header, [memoryview(data)[begin : begin + header.body_bytes]])
    decode_items(head, header.body_bytes)


def _bend_frame(rng: Random, data: bytes) -> bytes:
    """Now and then without the right checksums."""
    bent = bytearray(scramble(rng, data))
    if rng.random() < 0.2 or len(bent) < HEADER_BYTES:
        return bytes(bent)
    (head_bytes,) = struct.unpack_from("<I", bent, 8)
    body = memoryview(bytes(bent))[HEADER_BYTES + head_bytes :]
    struct.pack_into("<II", bent, 12, len(body), crc32c(body))
    head = bytes(bent[HEADER_BYTES : HEADER_BYTES + head_bytes])
    struct.pack_into("<I", bent, 20, crc32c(head, crc32c(bytes(bent[:20]))))
    return bytes(bent)
