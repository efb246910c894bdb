"""The ``epochs`` file of a partition: where its log starts, where each leader epoch starts, and what Raft remembers.

Segments say what was written; these facts about a log are stored here instead:

- the log start offset, which DeleteRecords and retention move inside a segment;
- the local start: segments before it are in an object store and need not be here. One that is too low costs space;
- the first offset of every leader epoch, the empty ones included (KIP-101: a follower asks where an epoch ended);
- the offset up to which the log is compacted; one that is too low costs time, nothing else;
- the replica's term and vote;
- the control entries of the group's Raft log. One takes a Raft position and no offset, so the position of a batch is
  its offset plus the control entries before it. Entries that are applied fold into the *base*, and the file stays
  small.

Between two checkpoints the write-ahead log holds the changes; the checkpoint replaces this file. A file that does not
match its checksum is `Corruption`, which fences the log: a start offset that was lost could show deleted records
again. Version 1 knows neither vote nor control entries: the log of a single node, whose positions are its offsets.
Version 2 knows no local start.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec

from millstream.errors import Corruption
from millstream.format.sealed import seal, unseal
from millstream.model.quantities import Offset
from millstream.model.replication import NO_REPLICA, RaftPosition, ReplicaId, Term

MAGIC = b"MSEP"
VERSION = 3
VERSIONS = range(1, VERSION + 1)
"""Versions that this code reads."""


class StoredVote(msgspec.Struct, frozen=True, array_like=True):
    """What a replica must never forget."""

    term: Term = Term(0)
    voted_for: ReplicaId = NO_REPLICA


class StoredControl(msgspec.Struct, frozen=True, array_like=True):
    """A control entry. It stands before the batch at `offset` and after every earlier one."""

    position: RaftPosition
    """The entry ends at the position after this one."""
    offset: Offset
    term: Term
    payload: bytes
    """The replication layer's encoding of the entry."""


class RaftBase(msgspec.Struct, frozen=True, array_like=True):
    """Start of the kept control entries, and the result of those before it."""

    offset: Offset = Offset(0)
    position: RaftPosition = RaftPosition(0)
    term: Term = Term(0)
    """Term of the entry that ends at `position`; 0 if there is no entry, or the term is unknown."""
    payload: bytes = b""
    """The replication layer's encoding of what the folded entries came to."""


class LogState(msgspec.Struct, frozen=True, array_like=True):
    """What a partition remembers beside its segments. Fields are only ever added at the end."""

    start_offset: Offset = Offset(0)
    epochs: tuple[tuple[Term, Offset], ...] = ()
    """(leader epoch, its first offset), both rising."""

    unused: bytes = b""
    """Version 1 had room for bytes of a replication layer here, which no release wrote."""

    clean_offset: Offset = Offset(0)
    """End (exclusive) of what compaction has rewritten."""

    vote: StoredVote = StoredVote()
    base: RaftBase = RaftBase()
    controls: tuple[StoredControl, ...] = ()
    """Control entries from `base` on, in order; their positions rise."""

    local_start: Offset = Offset(0)
    """Segments that end at or before it are archived and need not be here. Not after the end of the log."""

    @property
    def files_start(self) -> Offset:
        """The log's files have every offset from here on."""
        return max(self.start_offset, self.local_start)


Epochs = Sequence[tuple[Term, Offset]]
"""(leader epoch, its first offset), both rising. They tell the epoch of every batch, whose own word for it stands
outside its checksum.
"""


def epoch_at(epochs: Epochs, offset: Offset) -> int:
    """The leader epoch in which `offset` was written; -1 if that is not known."""
    place = bisect_right(epochs, offset, key=_first_offset) - 1
    return epochs[place][0] if place >= 0 else -1


def epochs_between(epochs: Epochs, offset: Offset, end_offset: Offset) -> list[tuple[Term, Offset]]:
    """Those of what lies between `offset` and `end_offset` (exclusive)."""
    first = max(0, bisect_right(epochs, offset, key=_first_offset) - 1)
    return list(epochs[first : bisect_left(epochs, end_offset, key=_first_offset)])


def with_terms_begun(epochs: Epochs, controls: Sequence[StoredControl]) -> list[tuple[Term, Offset]]:
    """The epochs, including those that start with a control entry and have no batch."""
    first: dict[Term, Offset] = {}
    for term, offset in [*epochs, *((one.term, one.offset) for one in controls)]:
        first[term] = min(offset, first.get(term, offset))
    return sorted(first.items())


def _first_offset(entry: tuple[Term, Offset]) -> Offset:
    return entry[1]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LogState).decode


def encode_log_state(state: LogState) -> bytes:
    """The content of an ``epochs`` file."""
    return seal(MAGIC, VERSION, _encode(state))


def decode_log_state(data: bytes | bytearray) -> LogState:
    """The state in an ``epochs`` file; raises Corruption."""
    try:
        state = _decode(unseal(MAGIC, VERSIONS, data))
    except msgspec.MsgspecError as error:
        raise Corruption(f"an epochs file that cannot be read: {error}") from error
    if any(later <= earlier for earlier, later in zip(state.epochs, state.epochs[1:], strict=False)):
        raise Corruption("the epochs of an epochs file do not rise")
    for count, control in enumerate(state.controls):
        if control.position != state.base.position + (control.offset - state.base.offset) + count:
            raise Corruption(f"the control entry at position {control.position} of an epochs file is out of place")
    return state
