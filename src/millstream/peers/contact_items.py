"""Items that stand for the heartbeats of groups at rest: a leader's claim for all of them, and the follower's answer.

::

    leader ──Led(set 7: groups, terms)──► follower        Followed(set 7, known, left out: groups) ──► leader
           ──LedAgain(set 7)───────────►                  Followed(set 7, …) ──►                      each interval

A set says which groups the sender leads, and in which terms. Its number grows with each change, and belongs to one
``session`` of the sender, so that sets from before a restart are not mixed up with it. The answer names groups of the
set that the receiver does not follow in that term, or no more. ``raft.contacts`` says what both ends make of it.

Peers of protocol version 1 do not know these items.

**Bad input.** A count that reaches beyond the head, or a negative number, is ``Corruption``.
"""

import struct
from array import array
from typing import Final, NewType, TypeAlias

import msgspec

from millstream.errors import Corruption

LED: Final = 36
LED_AGAIN: Final = 37
FOLLOWED: Final = 38
"""Kinds of item."""

Session = NewType("Session", int)
"""One run of a shard that sends sets of groups."""

CONTACT_VERSION: Final = 2
"""Protocol version from which on these items are known."""

_HEAD: Final = struct.Struct("<BBxxIQQ")


class Led(msgspec.Struct, frozen=True, gc=False):
    """The sender leads these groups, each in the term at the same place, and no others of its sets before."""

    session: Session
    number: int
    groups: tuple[int, ...]
    terms: tuple[int, ...]


class LedAgain(msgspec.Struct, frozen=True, gc=False):
    """The set ``number`` is still valid."""

    session: Session
    number: int


class Followed(msgspec.Struct, frozen=True, gc=False):
    """The answer to a set: all of its groups but ``left_out`` are followed. ``known`` is False if the set is not kept
    here, because it never arrived or the broker has restarted.
    """

    session: Session
    number: int
    known: bool
    left_out: tuple[int, ...] = ()


ContactItem: TypeAlias = Led | LedAgain | Followed


def encode_contact(item: ContactItem) -> bytes:
    """An item as it stands in a head."""
    match item:
        case Led():
            head = _HEAD.pack(LED, 0, len(item.groups), item.session, item.number)
            return head + array("q", item.groups).tobytes() + array("q", item.terms).tobytes()
        case LedAgain():
            return _HEAD.pack(LED_AGAIN, 0, 0, item.session, item.number)
        case Followed():
            head = _HEAD.pack(FOLLOWED, item.known, len(item.left_out), item.session, item.number)
            return head + array("q", item.left_out).tobytes()


def decode_contact(view: memoryview, position: int) -> tuple[ContactItem, int]:
    """The item at ``position``, and where the next one starts.

    Raises:
        Corruption: it does not add up.
    """
    kind, flags, count, session, number = _HEAD.unpack_from(view, position)
    position += _HEAD.size
    if kind == LED_AGAIN:
        if count:
            raise Corruption("a repeated set has groups")
        return LedAgain(Session(session), number), position
    groups, position = _column(view, position, count)
    if kind == FOLLOWED:
        return Followed(Session(session), number, flags == 1, groups), position
    terms, position = _column(view, position, count)
    return Led(Session(session), number, groups, terms), position


def _column(view: memoryview, position: int, count: int) -> tuple[tuple[int, ...], int]:
    end = position + 8 * count
    if end > len(view):
        raise Corruption(f"an item ends at byte {end} of a head of {len(view)} bytes")
    values = array("q", view[position:end].tobytes())
    if values and min(values) < 0:
        raise Corruption("a set of groups holds a negative number")
    return tuple(values), end
