"""Raft's entries in a log: control entries, and the state into which they are folded.

The log stores the bytes and their positions (`format.epochs`); this module encodes and decodes them. A term start is
empty, any other entry is a MessagePack map with its kind under ``type``. Fields are only ever added, with a default, so
that an older release reads what a newer one wrote as long as it knows the kind. Bytes that do not decode are
`Corruption`: the log is not opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from millstream.core.raft.messages import Configuration, Control, ControlEntry, Opaque, TermStart
from millstream.core.raft.ready import UNKNOWN_END, Recovered, VoteState
from millstream.errors import Corruption
from millstream.model.replication import NO_REPLICA, NO_TERM, Term
from millstream.storage.log.entries import EncodedControl
from millstream.storage.log.recovered import recovered
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from millstream.core.raft.raft import Raft
    from millstream.format.epochs import StoredControl
    from millstream.model.replication import RaftPosition
    from millstream.storage.log.log import Log

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_control: Final = msgspec.msgpack.Decoder(Control).decode


class Folded(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state that the control entries before a position produce."""

    configuration: Configuration
    """Members in force there."""

    owner_state: bytes = b""
    """State of the group's owner; empty if it had no entries."""


class OwnerHistory(NamedTuple):
    """The entries of a group's owner that were committed when the group was opened."""

    state: bytes
    """State into which older entries were folded; empty if there were none."""

    entries: tuple[Opaque, ...]
    """Entries that are not folded, in order. Some may be in the state already."""


_decode_folded: Final = msgspec.msgpack.Decoder(Folded).decode


def encode_control(control: Control) -> bytes:
    """The payload of a control entry."""
    return b"" if isinstance(control, TermStart) else _encode(control)


def decode_control(payload: bytes) -> Control:
    """The control entry with this payload.

    Raises:
        Corruption: the payload is not a control entry, or only a newer release knows its kind.
    """
    if not payload:
        return TermStart()
    try:
        return _decode_control(payload)
    except msgspec.MsgspecError as error:
        raise Corruption(f"a control entry that can't be read: {error}") from error


def encode_folded(folded: Folded) -> bytes:
    """The payload of a log's base."""
    return _encode(folded)


def decode_folded(payload: bytes) -> Folded:
    """What `encode_folded` made.

    Raises:
        Corruption: it is something else.
    """
    try:
        return _decode_folded(payload)
    except msgspec.MsgspecError as error:
        raise Corruption(f"the base of a Raft log that can't be read: {error}") from error


def note_mended(log: Log, core: Raft) -> None:
    """Let a lost log count as a replica again when its leader has replaced its entries."""
    if log.files.lost and not core.is_damaged:
        operator_log.info("%s: has everything again that was lost here", log.name)
        log.found_again()


def owner_history(log: Log, committed: RaftPosition) -> OwnerHistory:
    """The owner's entries of a log that end at or before ``committed``. Raises Corruption."""
    state = decode_folded(log.raft.controls.base.payload).owner_state if log.raft.controls.base.payload else b""
    controls = [decode_control(one.payload) for one in log.raft.controls.before(committed)]
    return OwnerHistory(state, tuple(one for one in controls if isinstance(one, Opaque)))


def encoded(entry: ControlEntry) -> EncodedControl:
    """A control entry as the log takes it."""
    return EncodedControl(entry.position, entry.term, encode_control(entry.control))


def decoded(entry: StoredControl) -> ControlEntry:
    """A control entry as the log gives it. Raises Corruption."""
    return ControlEntry(entry.position, entry.term, decode_control(entry.payload))


def recover(
    log: Log,
    first: Configuration,
    least_term: Term = NO_TERM,
    first_term: Term | None = None,
    *,
    created: bool = False,
) -> Recovered:
    """What a core is made from, of a log that was just opened. ``first`` are the first members of a new group;
    its term is at least ``least_term``. ``first_term`` is the term whose leader its creation has assigned, if any.
    ``created``: the replica was made just now, from nothing.

    Raises:
        Corruption: a control entry can't be read.
    """
    found = recovered(log)
    configuration = first
    if found.folded_payload:
        # Without members in a log that a single broker wrote, or that was made from the object store.
        configuration = decode_folded(found.folded_payload).configuration
        configuration = configuration if configuration.voters else first
    for one in found.controls_before:
        control = decode_control(one.payload)
        if isinstance(control, Configuration):
            configuration = control
    vote = VoteState(found.vote.term, found.vote.voted_for)
    if vote.term < least_term:
        vote = VoteState(least_term, NO_REPLICA)
    return Recovered(
        configuration,
        vote,
        found.base,
        found.runs,
        tuple(decoded(one) for one in found.controls),
        committed=found.base.position,
        damaged_until=UNKNOWN_END if log.files.lost else None,
        cast=VoteState(first_term, first.voters[0]) if first_term is not None and first.voters else None,
        created=created,
    )
