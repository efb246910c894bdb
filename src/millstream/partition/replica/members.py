"""What a replica knows of the members of its group before its log tells it."""

from typing import NamedTuple

from millstream.core.controller.cuts import Cut
from millstream.model.replication import ReplicaId, Term


class Members(NamedTuple):
    """What a replica is given of its group when it is opened."""

    voters: tuple[ReplicaId, ...] = ()
    """The first members of the group, in order of preference for leadership, this replica's broker among them.
    For one that learns: the members of now, who are asked if its files are lost.
    """

    learns: bool = False
    """This replica came later: it starts without members, and learns them from its leader."""

    is_alone: bool = False
    """Several brokers held the partition, and this one alone does now: no other has what its files had. Its log says
    that it is the only voter; if its files are lost, ``voters`` does.
    """

    was_alone: bool = False
    """This replica was the only one, and is to be one of several: its log may be empty, and has the terms of a sole
    voter.
    """

    now: tuple[ReplicaId, ...] = ()
    """The members of now, if the group's members have changed since it was made. They are asked if the files of this
    replica are lost; ``voters`` of a log without entries may be this replica alone.
    """

    restores: bool = False
    """This replica is the only one, and the object store has what its log needs: it is asked if there are no files."""

    first_term: Term | None = None
    """The term in which the first voter leads without an election, because the group's creation says so
    (`core.raft.beginning`); None for a group that elects its first leader, and for a replica that came later.
    """

    cut: Cut | None = None
    """The newest unclean cut of the partition (`core.controller.cutting`)."""

    @property
    def elect(self) -> bool:
        """Whether the group elects its leader. Otherwise this replica is alone, and always was."""
        return bool(self.voters)

    @property
    def has_others(self) -> bool:
        """Whether other replicas have what this one has."""
        return len(self.now or self.voters) > 1 and not self.was_alone
