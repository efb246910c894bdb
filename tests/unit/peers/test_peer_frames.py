"""Frames between brokers: every message survives, bounds hold before anything is read, entries are never joined."""

import struct
import typing

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.raft.messages import (
    Append,
    AppendRejected,
    AppendReply,
    Configuration,
    ControlEntry,
    Heartbeat,
    HeartbeatReply,
    Inquiry,
    InquiryReply,
    InstallOffer,
    LogPoint,
    LogStart,
    Message,
    NewerTerm,
    Opaque,
    TermRun,
    TermStart,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from millstream.errors import Corruption
from millstream.peers.beats import BeatsIn, BeatsOut
from millstream.peers.contact_items import Followed, Led, LedAgain
from millstream.peers.frames import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEADER_BYTES,
    HELLO_BYTES_MAX,
    FrameKind,
    check_body,
    check_head,
    decode_header,
    encode_frame,
)
from millstream.peers.hello import (
    Founder,
    Hello,
    Probe,
    Refusal,
    RefusalReason,
    Seed,
    agreed_version,
    decode_hello,
    decode_probe,
    decode_refusal,
    encode_hello,
    encode_probe,
    encode_refusal,
    encode_welcome,
)
from millstream.peers.items import (
    Answer,
    Beat,
    Beats,
    BeatsAgain,
    Call,
    Failure,
    Home,
    Leaders,
    Leadership,
    Status,
    decode_items,
    encode_item,
)
from millstream.peers.raft_items import RaftItem

NUMBERS = st.integers(0, 2**63 - 1)
POINTS = st.builds(LogPoint, NUMBERS, NUMBERS)
REPLICAS = st.lists(NUMBERS, max_size=5, unique=True).map(tuple)
CONFIGURATIONS = st.builds(Configuration, REPLICAS, REPLICAS, REPLICAS)
CONTROLS = st.one_of(
    st.just(TermStart()),
    CONFIGURATIONS,
    st.builds(LogStart, NUMBERS),
    st.builds(Opaque, st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40)),
)


@st.composite
def appends(draw):
    ends = sorted(draw(st.lists(st.integers(1, 2**62), max_size=4, unique=True)))
    start = draw(st.integers(0, ends[0] - 1 if ends else 2**62))
    return Append(
        draw(NUMBERS),
        LogPoint(start, draw(NUMBERS)),
        tuple(TermRun(end, draw(NUMBERS)) for end in ends),
        tuple(draw(st.lists(st.builds(ControlEntry, NUMBERS, NUMBERS, CONTROLS), max_size=3))),
        draw(NUMBERS),
        draw(NUMBERS),
        draw(NUMBERS),
    )


MESSAGES = st.one_of(
    st.builds(VoteRequest, NUMBERS, POINTS, st.booleans(), st.booleans()),
    st.builds(VoteReply, NUMBERS, st.booleans(), st.booleans()),
    appends(),
    st.builds(AppendReply, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(AppendRejected, NUMBERS, NUMBERS, POINTS, NUMBERS, st.booleans()),
    st.builds(Heartbeat, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(HeartbeatReply, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(TimeoutNow, NUMBERS),
    st.builds(InstallOffer, NUMBERS, POINTS, CONFIGURATIONS, NUMBERS),
    st.builds(NewerTerm, NUMBERS),
    st.builds(Inquiry, NUMBERS, NUMBERS),
    st.builds(InquiryReply, NUMBERS, NUMBERS, NUMBERS, st.booleans()),
)
ROWS = st.builds(Beat, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
OTHERS = st.one_of(
    st.builds(Beats, st.booleans(), st.lists(ROWS, max_size=4).map(tuple)),
    st.builds(BeatsAgain, st.booleans(), st.integers(0, 255)),
    st.builds(
        Leaders, st.booleans(), st.lists(st.builds(Leadership, NUMBERS, NUMBERS, NUMBERS), max_size=4).map(tuple)
    ),
    st.builds(Call, NUMBERS, st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=40)),
    st.builds(Answer, NUMBERS, st.binary(max_size=40)),
    st.builds(Failure, NUMBERS, st.integers(0, 255), st.integers(-(2**15), 2**15 - 1), st.text(max_size=20)),
    st.builds(Status, NUMBERS, NUMBERS, NUMBERS),
    st.builds(Home, NUMBERS, st.integers(0, 2**16 - 1)),
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5).map(
        lambda rows: Led(3, 4, tuple(row[0] for row in rows), tuple(row[1] for row in rows))
    ),
    st.builds(LedAgain, NUMBERS, NUMBERS),
    st.builds(Followed, NUMBERS, NUMBERS, st.booleans(), st.lists(NUMBERS, max_size=5).map(tuple)),
)
HELLO = Hello(1, 1, "MkU3OEVBNTcwNTJENDM2Qk", 2, bytes(range(16)), 1, 0, 2, 1, "0.1.0")
PROBE = Probe(Founder(2, bytes(range(16)), Seed("b", 2)), (Seed("a", 1), Seed("b", 2)), "", (), 1, "0.1.0")


def turn(items, bodies=()):
    return encode_frame(FrameKind.TURN, [encode_item(item) for item in items], bodies)


def read(buffers):
    data = b"".join(buffers)
    header = decode_header(data)
    head = check_head(header, data)
    body = data[HEADER_BYTES + header.head_bytes :]
    assert len(body) == header.body_bytes
    check_body(header, [body])
    return decode_items(head, header.body_bytes)


@given(
    st.lists(
        st.one_of(OTHERS, st.tuples(NUMBERS, MESSAGES, st.binary(max_size=30)).map(lambda drawn: drawn)), max_size=6
    )
)
def test_whatever_is_said_in_a_turn_arrives_with_its_bytes(drawn):
    items, body, start = [], [], 0
    for each in drawn:
        if isinstance(each, tuple):
            group, message, data = each
            each = RaftItem(group, message)
            if isinstance(message, Append):  # the only message with a place in the body
                each = RaftItem(group, message, start, len(data))
                body.append(data)
                start += len(data)
        items.append(each)
    assert read(turn(items, body)) == items


def test_entries_are_sent_from_where_they_are():
    log = bytearray(b"x" * 5000)
    views = [memoryview(log)[:2000], memoryview(log)[3000:5000]]
    append = Append(3, LogPoint(0, 0), (TermRun(9, 3),), (), 0, 0, 1)
    buffers = turn([RaftItem(7, append, 0, 2000), RaftItem(8, append, 2000, 2000)], views)
    assert [buffer is view for buffer, view in zip(buffers[1:], views, strict=True)] == [True, True]
    assert len(buffers[0]) < 300
    assert [(item.body_start, item.body_bytes) for item in read(buffers)] == [(0, 2000), (2000, 2000)]


@given(st.lists(st.one_of(OTHERS, st.builds(RaftItem, NUMBERS, MESSAGES)), min_size=1, max_size=4), st.data())
def test_a_head_that_was_cut_or_bent_is_corruption_or_read_in_bounds(items, data):
    head = bytearray(b"".join(encode_item(item) for item in items))
    if data.draw(st.booleans()):
        del head[data.draw(st.integers(0, len(head) - 1)) :]
    else:
        head[data.draw(st.integers(0, len(head) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode_items(bytes(head), 0)
    except Corruption:
        return


@pytest.mark.parametrize(
    ("bend", "words"),
    [
        (lambda d: b"HTTP" + d[4:], "a frame begins with 48545450"),
        (lambda d: d[:4] + b"\x63" + d[5:], "unknown kind 99"),
        (lambda d: d[:8] + struct.pack("<I", HEAD_BYTES_MAX + 1) + d[12:], "claims a head of 1048577 bytes"),
        (lambda d: d[:12] + struct.pack("<I", BODY_BYTES_MAX + 1) + d[16:], "claims a body of 134217729 bytes"),
        (lambda d: d[:-9] + b"\xff" + d[-8:], "head of a frame does not match its checksum"),
        (lambda d: d[:5] + b"\1" + d[6:], "head of a frame does not match its checksum"),
        (lambda d: d[:-1] + b"\xff", "body of a frame does not match its checksum"),
    ],
)
def test_a_frame_that_is_none_is_refused_before_it_is_believed(bend, words):
    append = Append(3, LogPoint(0, 0), (TermRun(9, 3),), (), 0, 0, 1)
    data = b"".join(turn([RaftItem(7, append, 0, 5)], [b"batch"]))
    with pytest.raises(Corruption, match=words):
        read([bend(data)])


def test_only_a_turn_may_be_long_or_have_a_body():
    data = bytearray(b"".join(encode_hello(HELLO)))
    struct.pack_into("<I", data, 8, HELLO_BYTES_MAX + 1)
    with pytest.raises(Corruption, match="the bound is 65536"):
        decode_header(data)
    with pytest.raises(Corruption, match="a body of 5 bytes, the bound is 4"):
        decode_header(b"".join(encode_frame(FrameKind.TURN, [], [b"12345"])), 4)
    with pytest.raises(Corruption, match="the bound is 0"):
        decode_header(b"".join(encode_frame(FrameKind.HELLO, [], [b"1"])))


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"\x1f\0", "unknown kind 31"),
        (b"\xff\0", "unknown kind 255"),
        (b"\x20", "does not decode"),
        (struct.pack("<BBxxI", 32, 0, 2**32 - 1), "an item ends at byte 171798691808"),
        (struct.pack("<BBxxIqqqqq", 32, 0, 1, -1, 0, 0, 0, 0), "a negative number"),
        (struct.pack("<BBxxIQI", 48, 1, 600_000, 1, 1), "a payload of 600000 bytes"),
        (struct.pack("<BBhIQ", 50, 1, 0, 2, 1) + b"\xff\xff", "does not decode"),
        (struct.pack("<BB6xqq", 9, 0, -1, 0), "a negative number"),
        (struct.pack("<BB6xqq", 9, 4, 1, 0), "unknown flags 0x4"),
        (struct.pack("<BB6xqqqqqqqHHI", 2, 0, 1, 1, 0, 0, 0, 0, 0, 65535, 65535, 0), "65535 runs and 65535 control"),
        (struct.pack("<BB6xqqqqqqqHHIqq", 2, 0, 1, 1, 5, 0, 0, 0, 0, 1, 0, 0, 5, 1), "do not follow each other"),
        (struct.pack("<BB6xqqqqqqqHHI", 2, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 7), "the appends of a frame have 7 bytes"),
        (struct.pack("<BB6xqqqqqBBB", 8, 0, 1, 1, 0, 0, 0, 2, 0, 0) + bytes(16), "a replica twice"),
        (struct.pack("<BB6xqqqqqBBB", 8, 0, 1, 1, 0, 0, 0, 255, 255, 255), "claims 765 members"),
    ],
)
def test_a_head_that_lies_is_corruption(head, words):
    with pytest.raises(Corruption, match=words):
        decode_items(head, 0)


def test_calls_and_errors_are_bounded_when_they_are_made():
    text = encode_item(Failure(1, 2, 3, "é" * 400_000))
    (failure,) = decode_items(text, 0)
    assert set(failure.message) == {"é"}
    with pytest.raises(AssertionError):
        encode_item(Answer(1, bytes(600_000)))


# Hello


@pytest.mark.parametrize("encode", [encode_hello, encode_welcome])
def test_a_hello_survives(encode):
    data = b"".join(encode(HELLO))
    header = decode_header(data)
    assert header.kind == (FrameKind.HELLO if encode is encode_hello else FrameKind.WELCOME)
    assert decode_hello(check_head(header, data)) == HELLO


@pytest.mark.parametrize(
    "change",
    [
        {"version_min": 0},
        {"version_max": 0},
        {"cluster_id": ""},
        {"cluster_id": "x" * 256},
        {"replica": -1},
        {"replica": 1 << 31},
        {"incarnation": b"short"},
        {"shards": 0},
        {"shards": 257},
        {"shard": 2},
        {"target": 256},
        {"release": "x" * 256},
        {"feature_level": -1},
    ],
)
def test_a_hello_outside_its_bounds_is_corruption(change):
    data = b"".join(encode_hello(Hello(**{name: getattr(HELLO, name) for name in HELLO.__struct_fields__} | change)))
    with pytest.raises(Corruption, match="outside the bounds"):
        decode_hello(check_head(decode_header(data), data))


def test_a_hello_of_a_later_release_may_say_more():
    later = b"\x9b" + b"".join(encode_hello(HELLO))[HEADER_BYTES + 1 :] + b"\xa3new"
    assert decode_hello(later) == HELLO
    for bad in (b"", b"\xc0", b"\x91" * 5000, later[:20]):
        with pytest.raises(Corruption):
            decode_hello(bad)


def test_the_protocol_version_is_the_newest_that_both_speak():
    def speaks(low, high):
        return Hello(low, high, *(getattr(HELLO, name) for name in HELLO.__struct_fields__[2:]))

    assert agreed_version(speaks(1, 3), speaks(2, 5)) == 3
    assert agreed_version(speaks(1, 1), speaks(2, 5)) is None


def test_refusals_and_probes_survive_in_their_bounds():
    data = b"".join(encode_refusal(Refusal(RefusalReason.OTHER_DISK, "n" * 5000)))
    refusal = decode_refusal(check_head(decode_header(data), data))
    assert (refusal.known_reason, len(refusal.message)) == (RefusalReason.OTHER_DISK, 2000)
    assert Refusal(99, "").known_reason is RefusalReason.OTHER
    data = b"".join(encode_probe(PROBE, answer=True))
    header = decode_header(data)
    assert (header.kind, decode_probe(check_head(header, data))) == (FrameKind.PROBE_ANSWER, PROBE)
    for bad in (
        Probe(Founder(-1, bytes(16), Seed("a", 1)), (), "", (), 1, ""),
        Probe(Founder(1, b"", Seed("a", 1)), (), "", (), 1, ""),
        Probe(Founder(1, bytes(16), Seed("a", 1)), (Seed("", 1),), "", (), 1, ""),
        Probe(Founder(1, bytes(16), Seed("a", 1)), (Seed("a", 0),), "", (), 1, ""),
        Probe(Founder(1, bytes(16), Seed("a", 1)), (Seed("a", 1),) * 65, "", (), 1, ""),
        Probe(Founder(1, bytes(16), Seed("a", 1)), (), "", (Founder(1, b"", Seed("a", 1)),), 1, ""),
    ):
        data = b"".join(encode_probe(bad))
        with pytest.raises(Corruption, match="outside the bounds"):
            decode_probe(check_head(decode_header(data), data))


# Beats


def beats(rounds, *, groups=(1, 2, 3), term=1):
    return tuple(Beat(group, term, 10 * group, 10 * group, rounds) for group in groups)


def test_beats_that_have_not_moved_are_a_few_bytes_for_any_number_of_groups():
    out, back = BeatsOut(reply=False), BeatsIn()
    many = range(5000)
    first = out.item(beats(1, groups=many))
    again = out.item(beats(2, groups=many))
    assert (len(encode_item(first)), len(encode_item(again))) == (200_008, 2)
    assert back.expand(first) == beats(1, groups=many)
    assert back.expand(again) == beats(2, groups=many)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([(1, 2, 3), (1, 3), ()]), st.integers(1, 2)), max_size=12))
def test_the_receiver_has_the_beats_of_the_sender_whatever_moves(turns):
    out, back = BeatsOut(reply=True), BeatsIn()
    rounds = 0
    for step, groups, term in turns:
        rounds += step
        said = beats(rounds, groups=groups, term=term)
        item = out.item(said)
        assert (item is None) == (not said)
        if item is not None:
            (arrived,) = decode_items(encode_item(item), 0)
            assert back.expand(arrived) == said


def test_a_repetition_of_nothing_is_corruption_and_a_large_step_is_said_in_full():
    with pytest.raises(Corruption, match="there were none before"):
        BeatsIn().expand(BeatsAgain(False, 1))
    out = BeatsOut(reply=False)
    out.item(beats(1))
    assert isinstance(out.item(beats(257)), Beats)
    assert isinstance(out.item(beats(256)), Beats)


def test_these_are_the_bytes_on_the_wire():
    """Golden bytes: brokers of different releases speak with each other."""
    append = Append(3, LogPoint(4, 2), (TermRun(6, 3),), (ControlEntry(4, 3, TermStart()),), 4, 5, 9)
    items = [RaftItem(7, append, 0, 5), RaftItem(7, VoteRequest(3, LogPoint(4, 2), True, False)), Status(1, 2, 3)]
    data = b"".join(turn([*items, Home(7, 1), Beats(False, (Beat(1, 2, 3, 4, 5),)), BeatsAgain(True, 1)], [b"batch"]))
    head = (
        "020000000000000007000000000000000300000000000000"
        "04000000000000000200000000000000040000000000000005000000000000000900000000000000"
        "0100010005000000"
        "06000000000000000300000000000000"
        "040000000000000003000000000000000000000000000000"
        "00010000000000000700000000000000030000000000000004000000000000000200000000000000"
        "3800000000000000010000000000000002000000000000000300000000000000"
        "39000100000000000700000000000000"
        "20000000010000000100000000000000020000000000000003000000000000000400000000000000"
        "0500000000000000"
        "2301"
    )  # fmt: skip
    fixed = b"MSP1" + b"\x06\0\0\0" + struct.pack("<III", len(head) // 2, 5, crc32c(b"batch"))
    expected = fixed + struct.pack("<I", crc32c(fixed + bytes.fromhex(head))) + bytes.fromhex(head) + b"batch"
    assert data.hex() == expected.hex()
    sets = b"".join(map(encode_item, (Led(3, 4, (7,), (2,)), LedAgain(3, 4), Followed(3, 4, True, (9,)))))
    assert sets.hex() == (
        "24000000010000000300000000000000040000000000000007000000000000000200000000000000"
        "250000000000000003000000000000000400000000000000"
        "2601000001000000030000000000000004000000000000000900000000000000"
    )  # fmt: skip
    hello = b"".join(encode_hello(HELLO))[HEADER_BYTES:].hex()
    assert hello == (
        "9a0101b64d6b55334f4556424e5463774e544a454e444d32516b02"
        "c410000102030405060708090a0b0c0d0e0f01000201a5302e312e30"
    )  # fmt: skip


FIELDS = {
    VoteRequest: ("term", "log_end", "pre", "transfer"),
    VoteReply: ("term", "granted", "pre"),
    Append: ("term", "prev", "runs", "controls", "committed", "visible", "round"),
    AppendReply: ("term", "received", "durable", "round"),
    AppendRejected: ("term", "prev_position", "hint", "round", "damaged"),
    Heartbeat: ("term", "committed", "visible", "round"),
    HeartbeatReply: ("term", "received", "durable", "round"),
    TimeoutNow: ("term",),
    InstallOffer: ("term", "end", "configuration", "round"),
    NewerTerm: ("term",),
    Inquiry: ("term", "number"),
    InquiryReply: ("term", "number", "end", "leads"),
    Configuration: ("voters", "outgoing", "learners"),
    ControlEntry: ("position", "term", "control"),
}


@pytest.mark.parametrize("cls", FIELDS, ids=lambda cls: cls.__name__)
def test_no_field_of_a_raft_message_is_left_out(cls):
    """A field that the core gains must get a place on the wire, not its default on the other side."""
    assert cls.__struct_fields__ == FIELDS[cls]
    assert set(typing.get_args(Message)) <= set(FIELDS)


@pytest.mark.parametrize("damage", ["cut", "count", "negative"])
def test_a_set_of_groups_that_does_not_add_up_is_corruption(damage):
    item = bytearray(encode_item(Led(3, 4, (7, 8), (2, 2))))
    if damage == "cut":
        del item[-1:]
    elif damage == "count":
        item[4] = 9
    else:
        item[31] = 0x80
    with pytest.raises(Corruption):
        decode_items(bytes(item), 0)
