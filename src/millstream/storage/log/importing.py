"""A log that is received from another replica, as the shard sees it: bytes that arrive go to the worker, which checks
them and writes files beside the log (``segments.incoming``).

One step at a time: ``add`` or ``finish`` is running, and its callback gets the result. An attempt that failed is
over, and ``drop`` removes its files. The log itself is not touched. Overload: ``ArenaFull`` from ``add``, and nothing
has happened.

An interrupted attempt can continue, with another leader too, and to a later end (``continue_to``): what is
committed is the same everywhere. ``resume`` continues what an earlier start of this broker received, if that is
certain to be of the same log: the leader epoch of its last batch must be the one that the leader has for that offset
(after an unsafe recovery another may stand there). A compacted log is not continued after ``delete.retention.ms``:
the leader may have removed deletion marks since then whose records are in the part that was received.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from millstream.errors import Corruption, MillstreamError, Unavailable
from millstream.format.epochs import encode_log_state, epoch_at
from millstream.format.names import staged_directory
from millstream.iobuf.receive import copied
from millstream.model.quantities import Offset
from millstream.storage.log.event_log import EventLog
from millstream.storage.messages.receiving import Resume, Stage, StageEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.model.replication import LogPoint
    from millstream.storage.log.exporting import LogDescription
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.messages.receiving import Resumed, Staged


class StagedFiles(NamedTuple):
    """A whole log, received and checked, for ``ShardStorage.adopt_log``."""

    directory: str
    end: LogPoint
    end_offset: Offset


class LogImport:
    """One attempt to receive a log.

    Lifecycle: ``add`` for each part in order, ``finish`` once; ``drop`` after a failure, or when it is not wanted any
    more.
    """

    __slots__ = (
        "_clean_offset",
        "_description",
        "_dropped",
        "_first",
        "_log",
        "_under_way",
        "directory",
        "end_offset",
        "first_offset",
        "next_offset",
    )

    def __init__(self, log: OpenLog, description: LogDescription) -> None:
        """``description`` is what the log is at the point where it is to end. Raises Corruption."""
        state = description.log_state
        base = state.base
        if state.controls or not description.first_offset <= base.offset or state.start_offset > base.offset:
            raise Corruption(f"{log.name}: a description of a log that does not add up")
        self._log = log
        self._description = description
        self._clean_offset = state.clean_offset
        self._first = True
        self._under_way = False
        self._dropped = False
        self.directory = staged_directory(log.directory, base.position)
        """Where the files are."""
        self.first_offset: Offset = description.first_offset
        """First offset of all."""
        self.next_offset: Offset = description.first_offset
        """First offset of the next part."""
        self.end_offset: Offset = base.offset
        """Where the log ends."""

    @property
    def is_idle(self) -> bool:
        """Whether the worker does nothing for it now."""
        return not self._under_way

    def continue_to(self, description: LogDescription) -> bool:
        """Continue to the point of another description, if the received part belongs to that log. Raises Corruption."""
        state = description.log_state
        end = state.base.offset
        same_end = end == self.end_offset and state.base.position == self._description.log_state.base.position
        if isinstance(self._log, EventLog) and not same_end:
            return False  # chunks belong to the name of their directory
        if not self.first_offset <= description.first_offset <= self.next_offset <= end:
            return False
        self._description = description
        self._clean_offset = min(self._clean_offset, state.clean_offset)
        self.end_offset = end
        return True

    def resume(self, done: Callable[[bool], None]) -> bool:
        """Look for what an earlier start received; call this first, if at all. False: there is nothing, and ``done`` is
        not called. Otherwise ``done`` gets whether it is continued; if not, its files are being removed.
        """
        staging = self._log.host.staging
        directories = staging.left_of(self._log.directory)
        if not directories:
            return False

        def resumed(reply: Resumed) -> None:
            self._under_way = False
            if self._dropped:
                staging.put_back(self._log.directory, directories)
                return
            fits = bool(reply.directory) and self._continues(reply)
            for directory in directories:
                if not fits or directory != reply.directory:
                    staging.drop(self._log.directory, directory)
            if fits:
                self._first = False
                self.directory = reply.directory
                self.first_offset, self.next_offset = reply.start, reply.end_offset
                self._clean_offset = min(
                    self._clean_offset, reply.start
                )  # how far the old leader had come is forgotten
            done(fits)

        self._under_way = True
        staging.resume(Resume(self._command([]), directories), resumed)
        return True

    def _continues(self, reply: Resumed) -> bool:
        """Whether what was received is a part of the log that is described."""
        state, config = self._description.log_state, self._log.config
        if not reply.start <= self.first_offset <= reply.end_offset <= self.end_offset:
            return False
        age_ms = self._log.host.now_ms() - reply.created_ms
        if "compact" in config.cleanup_policy and not 0 <= age_ms < config.delete_retention_ms:
            return False
        return epoch_at(state.epochs, Offset(reply.end_offset - 1)) == reply.last_epoch

    @property
    def is_complete(self) -> bool:
        """Whether all batches are there."""
        return self.next_offset >= self.end_offset

    def add(
        self, views: Sequence[memoryview], next_offset: Offset, done: Callable[[MillstreamError | None], None]
    ) -> None:
        """Write the batches from ``next_offset`` on, which end before the ``next_offset`` given. The bytes are copied.

        Raises:
            ArenaFull: no memory now.
        """
        chain = copied(self._log.host.arena, views)
        spans: list[int] = []
        for fragment, start, end in chain.parts:
            spans += (fragment.offset + start, fragment.offset + end)

        def staged(reply: Staged) -> None:
            chain.release()
            self._under_way = False
            failure = self._failure(reply)
            if failure is None:
                self.next_offset = next_offset
            self._answer(failure, done)

        self._under_way = True
        self._log.host.staging.stage(self._command(spans), staged)
        self._first = False

    def finish(self, done: Callable[[MillstreamError | None], None]) -> None:
        """All is there: complete the files, durably."""
        log, description = self._log, self._description
        state = description.log_state
        place = staged_directory(log.directory, state.base.position)

        def staged(reply: Staged) -> None:
            self._under_way = False
            failure = self._failure(reply)
            if failure is None and place != self.directory:
                log.host.staging.moved(self.directory)
                self.directory = place
            self._answer(failure, done)

        start = max(state.start_offset, min(log.start_offset, self.end_offset))  # it never moves back
        clean = min(state.clean_offset, self._clean_offset)
        encoded = encode_log_state(msgspec.structs.replace(state, start_offset=start, clean_offset=clean))
        self._under_way = True
        end = StageEnd(self._command([]), self.end_offset, encoded, description.producers, place)
        self._log.host.staging.stage_end(end, staged)

    def drop(self) -> None:
        """Remove the files. The callback of a running step is not called."""
        self._dropped = True
        if not self._under_way:
            self._log.host.staging.drop(self._log.directory, self.directory)

    def _answer(self, failure: MillstreamError | None, done: Callable[[MillstreamError | None], None]) -> None:
        if self._dropped:
            self._log.host.staging.drop(self._log.directory, self.directory)
        else:
            done(failure)

    def _command(self, spans: list[int]) -> Stage:
        log = self._log
        generation = 1 + max(one.generation for one in log.files.segments)
        return Stage(
            log.host.staging.next_id(),
            self.directory,
            self._first,
            self.first_offset,
            generation,
            log.sizes.segment_bytes,
            log.sizes.index_interval,
            spans,
            log.host.now_ms(),
            log.chunk_limits if isinstance(log, EventLog) else None,
        )

    def _failure(self, reply: Staged) -> MillstreamError | None:
        if reply.fault:
            return Corruption(f"{self._log.name}: {reply.fault}")
        if reply.errno:
            return Unavailable(f"{self._log.name}: {self.directory}: {os.strerror(reply.errno)}")
        return None
