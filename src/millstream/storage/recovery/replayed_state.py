"""The state of a log apart from its batches, while its write-ahead records are replayed: start, epochs, vote, control
entries.

It starts with the content of the ``epochs`` file and applies each record in order. The file may be newer than the first
of the records, because a checkpoint writes it before it makes them void. So a control entry that a later record cuts
off is left out from the first, and one that is known already is entered again, with those after it to follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.errors import Corruption
from millstream.format.epochs import LogState, StoredVote, with_terms_begun
from millstream.model.quantities import Offset
from millstream.model.replication import RaftPosition, ReplicaId
from millstream.storage.log.controls import ControlEntries

if TYPE_CHECKING:
    from millstream.format.wal import WalRecord
    from millstream.model.replication import Term


class Truncation(NamedTuple):
    """A cut of a log's end that its records hold."""

    offset: int
    end: int
    """Raft position, exclusive."""


class ReplayedState:
    """One log's state as of the records that were taken up.

    ``saved`` is what the ``epochs`` file says, None without one; ``trimmed_to`` and ``truncations`` are what all the
    records will say about the log's start and end.
    """

    __slots__ = ("_controls", "_log_start", "_void_from", "epochs", "has_entries", "reached", "saved", "start", "vote")

    def __init__(self, saved: LogState | None, trimmed_to: Offset, truncations: list[Truncation]) -> None:
        self.saved = saved
        self.has_entries = False
        """A record of a batch, a control entry or a cut was applied."""
        known = LogState() if saved is None else saved
        self._log_start: Offset = max(trimmed_to, known.start_offset)
        self.start: Offset = max(self._log_start, known.local_start)
        """Where the files of the log start after all records: the log start, or the local start if that is later."""
        self.reached = 0
        """The log went at least to here when it was trimmed."""
        self.epochs = list(known.epochs)
        self.vote = known.vote
        """The newest."""
        self._controls = ControlEntries(known.base, known.controls)
        # Of each truncation to come: the lowest Raft position that it or a later one cuts to.
        self._void_from = [min(one.end for one in truncations[place:]) for place in range(len(truncations))]

    def begin_from(self, derived: LogState) -> None:
        """There was no ``epochs`` file: start and epochs are what the segments say."""
        self._log_start, self.epochs = derived.start_offset, list(derived.epochs)
        self.start = self._log_start

    def trimmed(self, record: WalRecord) -> None:
        """A ``Kind.TRIM`` record."""
        self._log_start = max(self._log_start, record.base)
        self.start = max(self.start, record.base)
        self.reached = max(self.reached, record.last)

    def truncated(self, record: WalRecord) -> None:
        """A ``Kind.TRUNCATE`` record."""
        self._void_from.pop(0)
        self._controls.cut(RaftPosition(max(record.last, self._controls.base.position)))

    def voted(self, record: WalRecord) -> None:
        """A ``Kind.VOTE`` record."""
        self.vote = StoredVote(record.leader_epoch, ReplicaId(record.base))

    def control(self, record: WalRecord, payload: memoryview | None) -> None:
        """A ``Kind.CONTROL`` record; ``payload`` is None when it does not verify.

        Raises:
            Corruption: it is damaged, or does not follow what is known.
        """
        position = RaftPosition(record.last)
        controls = self._controls
        if position < controls.base.position or (self._void_from and position >= self._void_from[0]):
            return  # folded, or cut off later
        if payload is None:
            raise Corruption(f"a control entry at position {position} is damaged in the write-ahead log")
        controls.cut(position)
        if position != record.base + controls.shift:
            raise Corruption(
                f"the write-ahead log has a control entry at position {position} before offset {record.base}, where"
                f" {record.base + controls.shift} follows"
            )
        controls.add(record.base, record.leader_epoch, bytes(payload))

    def note_epoch(self, epoch: Term, offset: Offset) -> None:
        """A batch of ``epoch`` starts at ``offset``."""
        if not self.epochs or epoch > self.epochs[-1][0]:
            self.epochs.append((epoch, offset))

    def forget_epochs(self, offset: Offset) -> None:
        """The batches from ``offset`` on are void, or follow again."""
        while self.epochs and self.epochs[-1][1] >= offset:
            self.epochs.pop()

    def result(self) -> LogState:
        """The state after all records."""
        controls = self._controls
        return LogState(
            self._log_start,
            tuple(with_terms_begun(self.epochs, controls.entries)),
            b"",
            Offset(0) if self.saved is None else self.saved.clean_offset,
            self.vote,
            controls.base,
            tuple(controls.entries),
            Offset(0) if self.saved is None else self.saved.local_start,
        )
