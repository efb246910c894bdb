"""The head of a turn's frame: messages of all Raft groups, heartbeats, leaders, requests and answers.

::

    head │ item │ item │ …          item │ kind 1 │ flags 1 │ fields by kind, see the tables below │

A **Raft item** is one message of one group (``core.raft.messages``) with its fields in fixed places. An append says how
many bytes of the frame's body are its record batches; appends take the body in order and together all of it.

**Beats** are the heartbeats, or their replies, of many groups in columns of 8-byte integers: 40 bytes a group. If the
beats equal the last ones on this connection, the item has 2 bytes, and the receiver repeats the beats that it keeps
(``beats``). Groups at rest are not among them (``contact_items``).

**Leaders** are the leaderships that changed. **Calls** are requests to the controller that arrived at another broker,
with the time that is left; **answers** and **failures** come back under the same id, in any order. A **status** says
that a broker is alive, and how far it has applied the controller's log. **Home** names the right shard to a sender
whose message reached the wrong one.

**Bad input.** Every count is checked against the remaining bytes before memory is allocated for it. An item that does
not end inside the head, an unknown kind, or appends that do not add up to the body are ``Corruption``.
"""

import struct
import sys
from array import array
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from millstream.errors import Corruption
from millstream.model.cluster import BrokerEpoch, Revision
from millstream.model.replication import RaftPosition, ReplicaId, Term
from millstream.peers.contact_items import (
    FOLLOWED,
    LED,
    LED_AGAIN,
    ContactItem,
    Followed,
    Led,
    LedAgain,
    decode_contact,
    encode_contact,
)
from millstream.peers.frames import Buffer
from millstream.peers.raft_items import RAFT_KINDS, RaftItem, decode_raft, encode_raft

BEATS: Final = 32
BEAT_REPLIES: Final = 33
BEATS_AGAIN: Final = 34
BEAT_REPLIES_AGAIN: Final = 35
LEADERS: Final = 40
CALL: Final = 48
ANSWER: Final = 49
FAILURE: Final = 50
STATUS: Final = 56
HOME: Final = 57
"""Kinds of item; those below 32 are Raft messages by their tag."""

PAYLOAD_BYTES_MAX: Final = 512 << 10
"""Of a call, an answer or a failure."""

PLACES_MAX: Final = 62
"""Maximum number of replicas of a group in ``Leadership.in_sync``."""

assert sys.byteorder == "little", "columns are copied as they lie in memory"

_COUNT: Final = struct.Struct("<BBxxI")
_CALL: Final = struct.Struct("<BBxxIQI")
_ANSWER: Final = struct.Struct("<BBxxIQ")
_FAILURE: Final = struct.Struct("<BBhIQ")
_STATUS: Final = struct.Struct("<BBxxIQQQ")
_HOME: Final = struct.Struct("<BBHxxxxQ")


class Beat(msgspec.Struct, frozen=True, gc=False):
    """A heartbeat of one group, or the reply to it.

    ``first`` and ``second`` are committed and visible end in a heartbeat, received and durable end in a reply.
    """

    group: int
    term: Term
    first: RaftPosition
    second: RaftPosition
    round: int


class Beats(msgspec.Struct, frozen=True, gc=False):
    """Heartbeats (or replies) of groups whose state differs from what the receiver keeps of them."""

    reply: bool
    beats: tuple[Beat, ...]


class BeatsAgain(msgspec.Struct, frozen=True, gc=False):
    """The previous heartbeats (or replies) again, each with its round higher by ``step`` (0 to 255)."""

    reply: bool
    step: int


class Leadership(msgspec.Struct, frozen=True, gc=False):
    """A group is led by ``leader`` in ``term``; the newest term wins.

    ``in_sync`` has a bit for each replica of the group that is in sync, the lowest for the first of them; 0 for all.
    """

    group: int
    term: Term
    leader: ReplicaId
    in_sync: int = 0


class Leaders(msgspec.Struct, frozen=True, gc=False):
    """New leaderships. ``full``: all leaderships of the sender, after a reconnect."""

    full: bool
    leaderships: tuple[Leadership, ...]


class Call(msgspec.Struct, frozen=True, gc=False):
    """A request that is answered within ``timeout_ms`` from now, or whose outcome is unknown then."""

    id: int
    method: int
    timeout_ms: int
    payload: bytes


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a call."""

    id: int
    payload: bytes


class Failure(msgspec.Struct, frozen=True, gc=False):
    """A call ended with an error: ``error_class`` is its place in the taxonomy (``peers.calls``), ``code`` Kafka's."""

    id: int
    error_class: int
    code: int
    message: str


class Status(msgspec.Struct, frozen=True, gc=False):
    """A broker is alive as ``epoch`` and has applied the controller's log up to ``revision`` (exclusive)."""

    epoch: BrokerEpoch
    revision: Revision
    wall_ms: int
    """The sender's wall clock; shown to operators, used for no decision."""


class Home(msgspec.Struct, frozen=True, gc=False):
    """The home of ``group`` is another shard of the answering broker. The message was forwarded to it once."""

    group: int
    shard: int


Item: TypeAlias = RaftItem | Beats | BeatsAgain | ContactItem | Leaders | Call | Answer | Failure | Status | Home


def encode_item(item: Item) -> bytes:
    """An item as it stands in a head. The record batches of an append go into the body in the order of the items."""
    if isinstance(item, RaftItem):
        return encode_raft(item.group, item.message, item.body_bytes)
    return _ENCODE[type(item)](item)


def decode_items(head: Buffer, body_bytes: int | None) -> list[Item]:
    """The items of a head in their order. Record batches stay in the body; see ``RaftItem.body_start``.

    ``body_bytes`` is the size of the frame's body; None if the body was thrown away.

    Raises:
        Corruption: the head is not what a sender of this protocol version makes.
    """
    view = memoryview(head)
    items: list[Item] = []
    position = 0
    body_position = 0
    try:
        while position < len(view):
            kind = view[position]
            if kind in RAFT_KINDS:
                message, position = decode_raft(view, position, body_position)
                body_position += message.body_bytes
                items.append(message)
            elif kind in _DECODE:
                item, position = _DECODE[kind](view, position)
                items.append(item)
            else:
                raise Corruption(f"an item of unknown kind {kind}")
    except (struct.error, UnicodeDecodeError) as error:
        raise Corruption(f"an item of a frame does not decode: {error}") from None
    if body_bytes is not None and body_position != body_bytes:
        raise Corruption(f"the appends of a frame have {body_position} bytes, its body {body_bytes}")
    return items


def _encode_beats(beats: Beats) -> bytes:
    """The item that carries ``beats``."""
    rows = beats.beats
    columns = (
        [beat.group for beat in rows],
        [beat.term for beat in rows],
        [beat.first for beat in rows],
        [beat.second for beat in rows],
        [beat.round for beat in rows],
    )
    head = _COUNT.pack(BEAT_REPLIES if beats.reply else BEATS, 0, len(rows))
    return b"".join((head, *(array("q", column).tobytes() for column in columns)))


def _encode_beats_again(again: BeatsAgain) -> bytes:
    """The item that repeats the last beats: 2 bytes."""
    return bytes((BEAT_REPLIES_AGAIN if again.reply else BEATS_AGAIN, again.step))


def _encode_leaders(leaders: Leaders) -> bytes:
    """The item that carries ``leaders``."""
    rows = leaders.leaderships
    columns = (
        [row.group for row in rows],
        [row.term for row in rows],
        [row.leader for row in rows],
        [row.in_sync for row in rows],
    )
    head = _COUNT.pack(LEADERS, leaders.full, len(rows))
    return b"".join((head, *(array("q", column).tobytes() for column in columns)))


def _encode_call(call: Call) -> bytes:
    """The item of a request."""
    assert len(call.payload) <= PAYLOAD_BYTES_MAX
    return _CALL.pack(CALL, call.method, len(call.payload), call.id, call.timeout_ms) + call.payload


def _encode_answer(answer: Answer) -> bytes:
    """The item of an answer."""
    assert len(answer.payload) <= PAYLOAD_BYTES_MAX
    return _ANSWER.pack(ANSWER, 0, len(answer.payload), answer.id) + answer.payload


def _encode_failure(failure: Failure) -> bytes:
    """The item of a failed call."""
    text = failure.message.encode()[:PAYLOAD_BYTES_MAX].decode(errors="ignore").encode()
    return _FAILURE.pack(FAILURE, failure.error_class, failure.code, len(text), failure.id) + text


def _encode_status(status: Status) -> bytes:
    """The item of a sign of life."""
    return _STATUS.pack(STATUS, 0, 0, status.epoch, status.revision, status.wall_ms)


def _encode_home(home: Home) -> bytes:
    """The item that names a group's home shard."""
    return _HOME.pack(HOME, 0, home.shard, home.group)


def _decode_beats(view: memoryview, position: int) -> tuple[Item, int]:
    columns, after = _columns(view, position, 5)
    return Beats(view[position] == BEAT_REPLIES, tuple(map(Beat, *columns))), after


def _decode_beats_again(view: memoryview, position: int) -> tuple[Item, int]:
    end = _inside(view, position + 2)
    return BeatsAgain(view[position] == BEAT_REPLIES_AGAIN, view[position + 1]), end


def _decode_leaders(view: memoryview, position: int) -> tuple[Item, int]:
    columns, after = _columns(view, position, 4)
    return Leaders(view[position + 1] == 1, tuple(map(Leadership, *columns))), after


def _decode_call(view: memoryview, position: int) -> tuple[Item, int]:
    _, method, size, call_id, timeout_ms = _CALL.unpack_from(view, position)
    payload, after = _payload(view, position + _CALL.size, size)
    return Call(call_id, method, timeout_ms, payload), after


def _decode_answer(view: memoryview, position: int) -> tuple[Item, int]:
    _, _, size, call_id = _ANSWER.unpack_from(view, position)
    payload, after = _payload(view, position + _ANSWER.size, size)
    return Answer(call_id, payload), after


def _decode_failure(view: memoryview, position: int) -> tuple[Item, int]:
    _, error_class, code, size, call_id = _FAILURE.unpack_from(view, position)
    payload, after = _payload(view, position + _FAILURE.size, size)
    return Failure(call_id, error_class, code, payload.decode()), after


def _decode_status(view: memoryview, position: int) -> tuple[Item, int]:
    _, _, _, epoch, revision, wall_ms = _STATUS.unpack_from(view, position)
    return Status(BrokerEpoch(epoch), Revision(revision), wall_ms), position + _STATUS.size


def _decode_home(view: memoryview, position: int) -> tuple[Item, int]:
    _, _, shard, group = _HOME.unpack_from(view, position)
    return Home(group, shard), position + _HOME.size


def _columns(view: memoryview, position: int, width: int) -> tuple[list[Any], int]:
    """``width`` columns of as many 8-byte integers as the item says, and where the next item starts."""
    _, _, count = _COUNT.unpack_from(view, position)
    begin = position + _COUNT.size
    end = _inside(view, begin + 8 * width * count)
    values = array("q", view[begin:end].tobytes())
    if values and min(values) < 0:
        raise Corruption("a column of a frame holds a negative number")
    return [values[at : at + count] for at in range(0, width * count, count)] if count else [()] * width, end


def _payload(view: memoryview, position: int, size: int) -> tuple[bytes, int]:
    if size > PAYLOAD_BYTES_MAX:
        raise Corruption(f"an item claims a payload of {size} bytes, the bound is {PAYLOAD_BYTES_MAX}")
    end = _inside(view, position + size)
    return bytes(view[position:end]), end


def _inside(view: memoryview, end: int) -> int:
    if end > len(view):
        raise Corruption(f"an item ends at byte {end} of a head of {len(view)} bytes")
    return end


_ENCODE: Final[dict[type[Item], Callable[[Any], bytes]]] = {
    Beats: _encode_beats,
    BeatsAgain: _encode_beats_again,
    Led: encode_contact,
    LedAgain: encode_contact,
    Followed: encode_contact,
    Leaders: _encode_leaders,
    Call: _encode_call,
    Answer: _encode_answer,
    Failure: _encode_failure,
    Status: _encode_status,
    Home: _encode_home,
}

_DECODE: Final[dict[int, Callable[[memoryview, int], tuple[Item, int]]]] = {
    BEATS: _decode_beats,
    BEAT_REPLIES: _decode_beats,
    BEATS_AGAIN: _decode_beats_again,
    BEAT_REPLIES_AGAIN: _decode_beats_again,
    LED: decode_contact,
    LED_AGAIN: decode_contact,
    FOLLOWED: decode_contact,
    LEADERS: _decode_leaders,
    CALL: _decode_call,
    ANSWER: _decode_answer,
    FAILURE: _decode_failure,
    STATUS: _decode_status,
    HOME: _decode_home,
}
