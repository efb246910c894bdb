"""A log on its way to a replica that can't be sent its entries one by one: a point, what is known there, the batches
before it.

The point is the end of a sealed segment, committed and in the files, and the farthest such; without one it is where
the log's files start, and nothing is sent but what is known. Batches are read by offset, as a consumer's are, so that
compaction and retention continue. What retention has taken, or a last batch that compaction has taken, makes the
attempt fail; the next one has a later point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from millstream.errors import Corruption, MillstreamError
from millstream.format.epochs import LogState, RaftBase, StoredVote, decode_log_state, encode_log_state
from millstream.model.quantities import Offset
from millstream.model.replication import Term
from millstream.storage.log.cold_reads import ColdRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.iobuf import IoBuf
    from millstream.storage.log.cold_reads import ColdReads
    from millstream.storage.log.open_log import OpenLog

PRODUCERS_BYTES_MAX = 512 * 1024
"""A larger snapshot of the producers is not sent: the receiver replays the batches' headers."""


class ExportedBatches(NamedTuple):
    """Whole batches, and the offset of the next ones."""

    buf: IoBuf
    """The receiver releases it."""
    next_offset: Offset


class LogDescription(msgspec.Struct, frozen=True, array_like=True):
    """What a log is at a point of it, beside its batches."""

    state: bytes
    """Content of its ``epochs`` file there: the point is the base, no entry is after it, and there is no vote."""
    first_offset: Offset
    """The batches start here."""
    producers: tuple[int, bytes] | None = None
    """A snapshot of the producers at or before the point: (offset, state)."""

    @property
    def log_state(self) -> LogState:
        """The state, decoded. Raises Corruption."""
        return decode_log_state(self.state)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LogDescription).decode


def encode_description(description: LogDescription) -> bytes:
    """The description as it is sent."""
    return _encode(description)


def decode_description(data: bytes | memoryview) -> LogDescription:
    """What ``encode_description`` made; raises Corruption."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise Corruption(f"a description of a log that can't be read: {error}") from error


def choose_end(log: OpenLog, committed: Offset) -> Offset:
    """The point up to which a log is sent that is committed up to ``committed``: an offset, exclusive."""
    end = log.files.segments.first.base_offset
    stable, written = min(committed, log.stable_offset), log.ends.written_position
    for one in log.files.segments:
        if not one.sealed or one.end_offset > stable or one.end > written:
            break
        end = one.end_offset
    return max(end, log.raft.controls.base.offset)


def describe(log: OpenLog, end: Offset, folded_payload: bytes) -> LogDescription:
    """What ``log`` is at ``end``, which ``choose_end`` gave; ``folded_payload`` says what the control entries before it
    came to.
    """
    position = log.raft.controls.position_before(end)
    term = Term(max(0, log.raft.term_before(position)))
    state = LogState(
        min(log.ends.durable_start, end),  # what moved it farther stands after the point
        tuple(one for one in log.raft.epochs if one[0] <= term),
        b"",
        min(log.files.clean_offset, end),
        StoredVote(),
        RaftBase(end, position, term, folded_payload),
        (),
        min(log.files.local_start, end),
    )
    first = max(log.first_local_offset, log.ends.durable_start)
    newest = log.files.snapshots.newest
    if log.owner.producers is not None and first > log.ends.durable_start and (newest is None or newest[0] > end):
        # Headers before the first local batch cannot be replayed, and those after the point follow as entries.
        newest = end, log.owner.producers.snapshot(log.snapshot_offset, end)
    fits = newest is not None and first <= newest[0] <= end and len(newest[1]) <= PRODUCERS_BYTES_MAX
    return LogDescription(encode_log_state(state), min(first, end), newest if fits else None)


def read_batches(
    log: OpenLog,
    reads: ColdReads,
    offset: Offset,
    end: Offset,
    max_bytes: int,
    done: Callable[[ExportedBatches | MillstreamError], None],
) -> None:
    """Read batches from the one with ``offset`` on, those before ``end``; at least one if there is any."""

    def finished(found: IoBuf | MillstreamError) -> None:
        done(found if isinstance(found, MillstreamError) else ExportedBatches(found, call.found_end))

    call = reads.read(log, ColdRequest(offset, end, max_bytes, below_start=True), finished)
