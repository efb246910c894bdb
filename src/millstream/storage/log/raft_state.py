"""What a log holds for Raft beside its batches: leader epochs, the replica's vote, control entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.format.epochs import epoch_at
from millstream.model.quantities import Offset
from millstream.model.replication import Term
from millstream.storage.log.controls import ControlEntries

if TYPE_CHECKING:
    from millstream.format.epochs import LogState, StoredVote
    from millstream.model.replication import RaftPosition

NO_EPOCH: Final = -1


class LogRaft:
    """The Raft state of one log. It is saved in the ``epochs`` file; until then notes in the write-ahead log stand for
    it.
    """

    __slots__ = ("controls", "durable_vote", "epoch", "epochs", "vote", "write_term")

    def __init__(self, state: LogState) -> None:
        self.epochs: list[tuple[Term, Offset]] = list(state.epochs)
        """(leader epoch, its first offset), both rising. Those whose offset is below ``durable_offset`` are durable."""
        self.epoch: Term | int = self.epochs[-1][0] if self.epochs else NO_EPOCH
        """The last of ``epochs``; ``NO_EPOCH`` without any."""
        self.vote: StoredVote = state.vote
        """Term and vote of the replica as saved last."""
        self.durable_vote: StoredVote = state.vote
        """Term and vote after a crash now."""
        self.controls = ControlEntries(state.base, state.controls)
        """Control entries, which give the Raft position of every offset. Those that end at or before the durable end
        are durable.
        """
        self.write_term = Term(0)
        """The group's term at the newest write, which may be later than that of the entries written. Set by a group of
        several voters before it writes; 0 with a sole voter.
        """

    def begin_epoch(self, epoch: Term, offset: Offset) -> None:
        """Batches from ``offset`` on have a newer leader epoch."""
        self.epoch = epoch
        self.epochs.append((epoch, offset))

    def cut(self, offset: Offset, position: RaftPosition) -> None:
        """The log ends at ``offset``, Raft ``position``, now."""
        self.controls.cut(position)
        while self.epochs and self.epochs[-1][1] >= offset and not self._begun_by_control(self.epochs[-1]):
            self.epochs.pop()
        self.epoch = self.epochs[-1][0] if self.epochs else NO_EPOCH

    def _begun_by_control(self, epoch: tuple[Term, Offset]) -> bool:
        """Whether this epoch started with a control entry that is still in the log."""
        return any(one.term == epoch[0] and one.offset == epoch[1] for one in self.controls.entries)

    def term_before(self, position: RaftPosition) -> Term | int:
        """Term of the entry that ends at Raft ``position``; -1 if that is not known."""
        control = self.controls.ending_at(position)
        if control is not None:
            return control.term
        if position == self.controls.base.position and self.controls.base.term:
            return self.controls.base.term
        return epoch_at(self.epochs, Offset(self.controls.offset_at(position) - 1))
