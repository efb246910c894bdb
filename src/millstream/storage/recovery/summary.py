"""Summaries of logs that an orderly stop stores, so that the next start reads no log's files.

Each shard leaves the summaries of its logs in its ``state`` file; recovery gathers them into ``wal/opened``, where
every shard finds those of the logs it opens, for any number of shards. The file speaks only for the start that
follows: recovery replaces or removes it each time. The user of a summary checks the size of the active segment, the
one thing a hand could have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millstream.errors import Corruption
from millstream.format.epochs import LogState
from millstream.format.index import SegmentSummary
from millstream.format.names import OPENED_FILE, WAL_DIRECTORY, segment_name
from millstream.format.sealed import seal, unseal
from millstream.format.wal import WalState
from millstream.model.quantities import Offset
from millstream.model.replication import Term
from millstream.storage.disk import read_file, replace_file
from millstream.storage.log.opening import LoadedLog
from millstream.storage.wal.state import write_wal_state
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.storage.disk import Disk
    from millstream.storage.log.log import Log
    from millstream.storage.wal.wal import Wal

_MAGIC = b"MSOP"
_VERSION = 1


class LogSummary(msgspec.Struct, frozen=True, array_like=True):
    """One log at an orderly stop."""

    group: int
    state: LogState
    segments: tuple[SegmentSummary, ...]
    producers: tuple[int, bytes] | None
    snapshot_files: tuple[int, ...]

    @property
    def end_offset(self) -> Offset:
        """Where it ended, exclusive."""
        return LoadedLog(self.state, self.segments, self.producers, self.snapshot_files).next_offset


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[LogSummary, ...]).decode


def encode_summaries(summaries: list[LogSummary]) -> bytes:
    """Bytes for a ``state`` file."""
    return _encode(summaries)


def decode_summaries(data: bytes) -> tuple[LogSummary, ...]:
    """What ``encode_summaries`` made; raises Corruption."""
    try:
        return _decode(data) if data else ()
    except msgspec.MsgspecError as error:
        raise Corruption(f"summaries that cannot be read: {error}") from error


def summarize(log: Log) -> LogSummary:
    """The summary of a log of which everything is in its segments."""
    log.refresh()
    producers = log.files.snapshots.newest
    if log.owner.producer_snapshot is not None:
        data = log.owner.producer_snapshot()
        producers = None if data is None else (log.snapshot_offset, data)
    segments = tuple(one.summary() for one in log.files.segments.all() if one.size_bytes)
    return LogSummary(log.group, log.durable_state(), segments, producers, tuple(log.files.snapshots.files))


def leave_summaries(disk: Disk, directory: str, wal: Wal, term: Term, logs: Iterable[Log]) -> None:
    """Say in the ``state`` files of a write-ahead log that everything is durable in the segments, and what there is. A
    disk that refuses it costs the next start time, no more.
    """
    found: list[LogSummary] = []
    for log in list(logs):
        try:
            if not log.files.lost:
                found.append(summarize(log))
        except Exception as error:  # noqa: BLE001 - the boundary
            log.failed("summary", error)  # the next start looks at its files
    summaries = encode_summaries(found)
    state = WalState(wal.next_sequence, wal.files.next_generation, clean=True, logs=summaries, term=term)
    try:
        write_wal_state(disk, directory, state)
    except OSError as error:
        operator_log.warning("what is in the logs could not be noted, the next start looks at each: %s", error)


def write_opened(disk: Disk, data_dir: str, summaries: list[LogSummary]) -> None:
    """Leave the summaries for the shards of this start."""
    replace_file(disk, f"{data_dir}/{WAL_DIRECTORY}/{OPENED_FILE}", seal(_MAGIC, _VERSION, _encode(summaries)))


def read_opened(disk: Disk, data_dir: str) -> dict[int, LogSummary]:
    """The summaries for this start, by group; none after a crash, none if they cannot be read."""
    try:
        data = read_file(disk, f"{data_dir}/{WAL_DIRECTORY}/{OPENED_FILE}")
        return {one.group: one for one in decode_summaries(unseal(_MAGIC, _VERSION, data))}
    except (OSError, Corruption):
        return {}


def open_summarized(disk: Disk, directory: str, summary: LogSummary) -> LoadedLog | None:
    """The log as summarized, if its last segment still is as long as it was; None if not."""
    if summary.segments:
        last = summary.segments[-1]
        try:
            size = disk.size(f"{directory}/{segment_name(last.base_offset, last.generation)}")
        except FileNotFoundError:
            return None
        if size != last.size_bytes:
            return None
    return LoadedLog(summary.state, summary.segments, summary.producers, summary.snapshot_files)
