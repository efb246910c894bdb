"""Unclean cuts in the controller's state: which replica a partition continues from, because a person has decided so.

A cut stays as long as its partition: a replica that was away takes it when it comes back, however late
(`cutting`, `partition.replica.cutting`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millstream.core.controller.commands import PartitionCut, PartitionCutDone
from millstream.errors import Corruption
from millstream.model.quantities import Offset
from millstream.model.replication import ReplicaId, Term

if TYPE_CHECKING:
    from millstream.core.controller.commands import PartitionState


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """The newest cut of a partition."""

    replica: ReplicaId
    """The replica that leads from the cut on."""

    term: Term
    """It leads in this term or a later one. No earlier leader had it."""

    end_offset: Offset
    """End (exclusive) that its log was found to have; -1 if that shows only when it is opened."""

    done: bool = False
    """It has led: the others may follow it, and it does not cut again."""

    @property
    def others_term(self) -> Term:
        """Term in which the other replicas start empty. No replica leads in it."""
        return Term(self.term - 1)

    def is_to_lead(self, replica: ReplicaId) -> bool:
        """Whether this replica has to carry the cut out, and has not."""
        return self.replica == replica and not self.done


def apply_cut(cuts: dict[int, Cut], partition: PartitionState, command: PartitionCut | PartitionCutDone) -> None:
    """Note a cut of a partition, or that it was carried out. Raises Corruption if it contradicts the newest one."""
    before = cuts.get(partition.raft_group)
    if isinstance(command, PartitionCut):
        if before is not None and before.term >= command.term:
            raise Corruption(f"the controller's log cuts group {partition.raft_group} in a term of before")
        cuts[partition.raft_group] = Cut(command.replica, command.term, command.end_offset)
        return
    if before is None or before.term != command.term:
        raise Corruption(f"the controller's log completes an unknown cut of group {partition.raft_group}")
    cuts[partition.raft_group] = msgspec.structs.replace(before, done=True)
