"""Raft messages as items of a frame's head: fixed fields by kind, little-endian, and a table that says which.

The kind of an item is the tag of its message class (``core.raft.messages``), below 32. Every item starts alike::

    kind 1 │ flags 1 │ zero 6 │ group 8 │ term 8 │ numbers 8 × n │ variable part

``flags`` are the booleans of the message in their order, lowest bit first. An append continues with counts and with its
runs and control entries; an install offer with the configuration in force; a part of files with the size of its body. A
control entry is its kind, its length and its fields, so that a reader may bound it before it looks inside.

Positions, terms and rounds are below 2^63. A larger number, a count that the remaining bytes cannot hold, or a control
entry that does not decode is ``Corruption``.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from millstream.core.raft.messages import (
    MAX_OPAQUE_BYTES,
    Append,
    AppendRejected,
    AppendReply,
    Configuration,
    Control,
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
from millstream.model.quantities import Offset
from millstream.model.replication import RaftPosition, ReplicaId, Term
from millstream.peers.file_items import FilesPart, FilesWanted

GroupMessage: TypeAlias = Message | FilesWanted | FilesPart
"""A message between two replicas of a group: of the cores, or of the shells."""

_PREFIX: Final = struct.Struct("<BB6xqq")
_COUNTS: Final = struct.Struct("<HHI")
_RUN: Final = struct.Struct("<qq")
_CONTROL: Final = struct.Struct("<qqBxxxI")
_LOG_START: Final = struct.Struct("<q")
_OPAQUE: Final = struct.Struct("<q")
_MEMBERS: Final = struct.Struct("<BBB")
_BODY: Final = struct.Struct("<I4x")


class RaftItem(msgspec.Struct, frozen=True, gc=False):
    """One message of one group. Its record batches, or what else it carries, are the ``body_bytes`` of the frame's body
    from ``body_start``.
    """

    group: int
    message: GroupMessage
    body_start: int = 0
    body_bytes: int = 0


def encode_raft(group: int, message: GroupMessage, body_bytes: int = 0) -> bytes:
    """The item of ``message``; ``body_bytes`` is the size of what the caller puts into the body for it."""
    assert not body_bytes or isinstance(message, Append | FilesPart), "this message has no body"
    kind, numbers = _KIND_OF[type(message)], _NUMBERS[type(message)]
    fixed = _FIXED[len(numbers)]
    flags = 0
    for bit, name in enumerate(_FLAGS.get(type(message), ())):
        flags |= getattr(message, name) << bit
    item = _PREFIX.pack(kind, flags, group, message.term) + fixed.pack(*(number(message) for number in numbers))
    if isinstance(message, Append):
        runs = b"".join(_RUN.pack(run.end_position, run.term) for run in message.runs)
        controls = b"".join(map(_encode_control_entry, message.controls))
        return item + _COUNTS.pack(len(message.runs), len(message.controls), body_bytes) + runs + controls
    if isinstance(message, FilesPart):
        return item + _BODY.pack(body_bytes)
    if isinstance(message, InstallOffer):
        return item + _encode_members(message.configuration)
    return item


def decode_raft(view: memoryview, position: int, body_start: int) -> tuple[RaftItem, int]:
    """The item at ``position``, and where the next one starts; its record batches start at ``body_start``.

    Raises:
        Corruption: it is not what `encode_raft` makes.
        struct.error: it ends beyond the head.
    """
    kind, flags, group, term = _PREFIX.unpack_from(view, position)
    cls = RAFT_KINDS[kind]
    fixed = _FIXED[len(_NUMBERS[cls])]
    numbers = fixed.unpack_from(view, position + _PREFIX.size)
    position += _PREFIX.size + fixed.size
    if group < 0 or term < 0 or (numbers and min(numbers) < 0):
        raise Corruption("a Raft message has a negative number")
    names = _FLAGS.get(cls, ())
    if flags >> len(names):
        raise Corruption(f"a Raft message of kind {kind} has unknown flags {flags:#x}")
    booleans = [bool(flags >> bit & 1) for bit in range(len(names))]
    if cls is Append:
        return _decode_append(view, position, body_start, group, Term(term), numbers)
    if cls is FilesPart:
        (body_bytes,) = _BODY.unpack_from(view, position)
        part = FilesPart(Term(term), numbers[0], Offset(numbers[1]), Offset(numbers[2]), *booleans)
        return RaftItem(group, part, body_start, body_bytes), position + _BODY.size
    if cls is InstallOffer:
        configuration, position = _decode_members(view, position, len(view))
        end = LogPoint(numbers[0], numbers[1])
        return RaftItem(group, InstallOffer(Term(term), end, configuration, numbers[2])), position
    return RaftItem(group, _MAKE[cls](term, numbers, booleans)), position


def _decode_append(
    view: memoryview, position: int, body_start: int, group: int, term: Term, numbers: tuple[Any, ...]
) -> tuple[RaftItem, int]:
    run_count, control_count, body_bytes = _COUNTS.unpack_from(view, position)
    position += _COUNTS.size
    if run_count * _RUN.size + control_count * _CONTROL.size > len(view) - position:
        raise Corruption(f"an append claims {run_count} runs and {control_count} control entries")
    end = position + run_count * _RUN.size
    runs = tuple(TermRun(RaftPosition(at), Term(of)) for at, of in _RUN.iter_unpack(view[position:end]))
    before = numbers[0]
    for run in runs:
        if run.end_position <= before or run.term < 0:
            raise Corruption("the runs of an append do not follow each other")
        before = run.end_position
    controls: list[ControlEntry] = []
    for _ in range(control_count):
        control, end = _decode_control_entry(view, end)
        controls.append(control)
    prev = LogPoint(numbers[0], numbers[1])
    append = Append(term, prev, runs, tuple(controls), numbers[2], numbers[3], numbers[4])
    return RaftItem(group, append, body_start, body_bytes), end


def _encode_control_entry(entry: ControlEntry) -> bytes:
    kind, payload = _encode_control(entry.control)
    return _CONTROL.pack(entry.position, entry.term, kind, len(payload)) + payload


def _encode_control(control: Control) -> tuple[int, bytes]:
    match control:
        case TermStart():
            return 0, b""
        case Configuration():
            return 1, _encode_members(control)
        case LogStart():
            return 2, _LOG_START.pack(control.offset)
        case Opaque():
            return 3, _OPAQUE.pack(control.kind) + control.payload


def _decode_control_entry(view: memoryview, position: int) -> tuple[ControlEntry, int]:
    at, term, kind, size = _CONTROL.unpack_from(view, position)
    begin = position + _CONTROL.size
    end = begin + size
    if at < 0 or term < 0 or end > len(view):
        raise Corruption("a control entry reaches beyond its frame")
    return ControlEntry(RaftPosition(at), Term(term), _decode_control(kind, view, begin, end)), end


def _decode_control(kind: int, view: memoryview, begin: int, end: int) -> Control:
    """The control entry in [begin, end), which it must fill."""
    size = end - begin
    if kind == 0 and not size:
        return TermStart()
    if kind == 1:
        configuration, after = _decode_members(view, begin, end)
        if after == end:
            return configuration
    elif kind == 2 and size == _LOG_START.size:
        (offset,) = _LOG_START.unpack_from(view, begin)
        if offset >= 0:
            return LogStart(offset)
    elif kind == 3 and _OPAQUE.size <= size <= _OPAQUE.size + MAX_OPAQUE_BYTES:
        (opaque_kind,) = _OPAQUE.unpack_from(view, begin)
        return Opaque(opaque_kind, bytes(view[begin + _OPAQUE.size : end]))
    raise Corruption(f"a control entry of kind {kind} has {size} bytes")


def _encode_members(configuration: Configuration) -> bytes:
    parts = (configuration.voters, configuration.outgoing, configuration.learners)
    members = [member for part in parts for member in part]
    return _MEMBERS.pack(*map(len, parts)) + struct.pack(f"<{len(members)}q", *members)


def _decode_members(view: memoryview, position: int, end: int) -> tuple[Configuration, int]:
    voters, outgoing, learners = _MEMBERS.unpack_from(view, position)
    position += _MEMBERS.size
    count = voters + outgoing + learners
    if 8 * count > end - position:
        raise Corruption(f"a configuration claims {count} members")
    members: tuple[ReplicaId, ...] = struct.unpack_from(f"<{count}q", view, position)
    if members and min(members) < 0:
        raise Corruption("a configuration has a negative replica id")
    parts = members[:voters], members[voters : voters + outgoing], members[voters + outgoing :]
    if any(len(set(part)) != len(part) for part in parts):
        raise Corruption("a configuration has a replica twice")
    return Configuration(*parts), position + 8 * count


_NUMBERS: Final[dict[type[GroupMessage], tuple[Callable[[Any], int], ...]]] = {
    VoteRequest: (lambda m: m.log_end.position, lambda m: m.log_end.term),
    VoteReply: (),
    Append: (
        lambda m: m.prev.position,
        lambda m: m.prev.term,
        lambda m: m.committed,
        lambda m: m.visible,
        lambda m: m.round,
    ),
    AppendReply: (lambda m: m.received, lambda m: m.durable, lambda m: m.round),
    AppendRejected: (lambda m: m.prev_position, lambda m: m.hint.position, lambda m: m.hint.term, lambda m: m.round),
    Heartbeat: (lambda m: m.committed, lambda m: m.visible, lambda m: m.round),
    HeartbeatReply: (lambda m: m.received, lambda m: m.durable, lambda m: m.round),
    TimeoutNow: (),
    InstallOffer: (lambda m: m.end.position, lambda m: m.end.term, lambda m: m.round),
    NewerTerm: (),
    Inquiry: (lambda m: m.number,),
    InquiryReply: (lambda m: m.number, lambda m: m.end),
    FilesWanted: (lambda m: m.end, lambda m: m.offset),
    FilesPart: (lambda m: m.end, lambda m: m.offset, lambda m: m.next_offset),
}
"""The numbers of each message after its term, in the order in which they stand."""

_FLAGS: Final[dict[type[GroupMessage], tuple[str, ...]]] = {
    VoteRequest: ("pre", "transfer"),
    VoteReply: ("granted", "pre"),
    AppendRejected: ("damaged",),
    InquiryReply: ("leads",),
    FilesWanted: ("description",),
    FilesPart: ("description", "failed"),
}

_MAKE: Final[dict[type[GroupMessage], Callable[[Term, Any, list[bool]], GroupMessage]]] = {
    VoteRequest: lambda t, n, f: VoteRequest(t, LogPoint(n[0], n[1]), f[0], f[1]),
    VoteReply: lambda t, _, f: VoteReply(t, f[0], f[1]),
    AppendReply: lambda t, n, _: AppendReply(t, *n),
    AppendRejected: lambda t, n, f: AppendRejected(t, n[0], LogPoint(n[1], n[2]), n[3], f[0]),
    Heartbeat: lambda t, n, _: Heartbeat(t, *n),
    HeartbeatReply: lambda t, n, _: HeartbeatReply(t, *n),
    TimeoutNow: lambda t, _n, _f: TimeoutNow(t),
    NewerTerm: lambda t, _n, _f: NewerTerm(t),
    Inquiry: lambda t, n, _: Inquiry(t, n[0]),
    InquiryReply: lambda t, n, f: InquiryReply(t, n[0], n[1], f[0]),
    FilesWanted: lambda t, n, f: FilesWanted(t, n[0], n[1], f[0]),
}

_KIND_OF: Final[dict[type[GroupMessage], int]] = {cls: int(cls.__struct_config__.tag or 0) for cls in _NUMBERS}

RAFT_KINDS: Final[dict[int, type[GroupMessage]]] = {kind: cls for cls, kind in _KIND_OF.items()}
"""The message classes by the kind of their item."""

_FIXED: Final = tuple(struct.Struct(f"<{count}q") for count in range(6))
