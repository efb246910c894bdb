"""The ``epochs`` file of a partition: where its log starts, and where each leader epoch began.

Segments say what was written; four facts about a log are not in them and live here, 24 bytes an epoch:

- the log start offset, which DeleteRecords and retention move inside a segment;
- the first offset of every leader epoch, the empty ones included (KIP-101: a follower asks where an epoch ended);
- a few opaque bytes of the replication layer (Raft's term and vote);
- the offset up to which the log is compacted; one that is too low costs time, nothing else.

Between two checkpoints the write-ahead log holds the changes; the checkpoint replaces this file. A file that does not
match its checksum is `Corruption`, which fences the log: a start offset that was lost could show deleted records
again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec

from millstream.errors import Corruption
from millstream.format.sealed import seal, unseal
from millstream.model.quantities import Offset
from millstream.model.replication import Term

MAGIC = b"MSEP"
VERSION = 1


class LogState(msgspec.Struct, frozen=True, array_like=True):
    """What a partition remembers beside its segments."""

    start_offset: Offset = Offset(0)
    epochs: tuple[tuple[Term, Offset], ...] = ()
    """(leader epoch, its first offset), both rising."""

    vote: bytes = b""
    clean_offset: Offset = Offset(0)
    """End (exclusive) of what compaction has looked at."""


Epochs = Sequence[tuple[Term, Offset]]
"""(leader epoch, its first offset), both rising. They tell the epoch of every batch, whose own word for it stands
outside its checksum.
"""


def epoch_at(epochs: Epochs, offset: int) -> int:
    """The leader epoch in which `offset` was written; -1 if that is not known."""
    place = bisect_right(epochs, offset, key=_first_offset) - 1
    return epochs[place][0] if place >= 0 else -1


def epochs_between(epochs: Epochs, offset: int, end_offset: int) -> list[tuple[Term, Offset]]:
    """Those of what lies between `offset` and `end_offset` (exclusive)."""
    first = max(0, bisect_right(epochs, offset, key=_first_offset) - 1)
    return list(epochs[first : bisect_left(epochs, end_offset, key=_first_offset)])


def _first_offset(entry: tuple[Term, Offset]) -> Offset:
    return entry[1]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LogState).decode


def encode_log_state(state: LogState) -> bytes:
    """The content of an ``epochs`` file; as short as ever for a log that was never compacted."""
    fields = (state.start_offset, state.epochs, state.vote)
    return seal(MAGIC, VERSION, _encode((*fields, state.clean_offset) if state.clean_offset else fields))


def decode_log_state(data: bytes | bytearray) -> LogState:
    """The state in an ``epochs`` file; raises Corruption."""
    try:
        state = _decode(unseal(MAGIC, VERSION, data))
    except msgspec.MsgspecError as error:
        raise Corruption(f"an epochs file that cannot be read: {error}") from error
    if any(later <= earlier for earlier, later in zip(state.epochs, state.epochs[1:], strict=False)):
        raise Corruption("the epochs of an epochs file do not rise")
    return state
