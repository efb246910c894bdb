"""Identifiers and quantities of replication. Each has a type of its own, so that no two are mixed up."""

from typing import NewType

from msgspec import Struct

Term = NewType("Term", int)
"""Raft term of a group, from 0 (no term yet). Kafka's leader epoch is the term."""

RaftPosition = NewType("RaftPosition", int)
"""Entries of a group's log before a point: record offset plus the control entries before it. Ends are exclusive, so
the entry that ends at position ``p`` is entry number ``p - 1``, and an empty log ends at 0."""

ReplicaId = NewType("ReplicaId", int)
"""Identity of one replica's disk in a group's configuration; see ``replica_id``."""

TimeUs = NewType("TimeUs", int)
"""Monotonic time of one process in microseconds. Only differences mean something."""

EntryKind = NewType("EntryKind", int)
"""What an entry of a group's owner is about; only the owner knows the kinds."""

EntryCount = NewType("EntryCount", int)
"""Number of entries of a log."""

InquiryNumber = NewType("InquiryNumber", int)
"""Tells the questions of one life of a replica that has lost its log from those of another."""

ReadId = NewType("ReadId", int)
"""Number that the shell gives a read barrier, unique within one life of a replica."""

Round = NewType("Round", int)
"""Number of a round in which a leader asks its peers for a sign of life."""

Seed = NewType("Seed", int)
"""Where random numbers start."""

NO_TERM = Term(0)
"""The term before the first one."""

NO_REPLICA = ReplicaId(-1)
"""No replica: no vote, no known leader."""

REPLACEMENT_SHIFT = 32


def replica_id(node_id: int, replacement: int = 0) -> ReplicaId:
    """Identity of node ``node_id`` with its ``replacement``-th disk (0 is the first).

    A node that returns with an empty disk is a new member: its old identity never votes or acknowledges again. With
    the first disk the identity equals the node id.
    """
    return ReplicaId(replacement << REPLACEMENT_SHIFT | node_id)


def node_of(replica: ReplicaId) -> int:
    """Node id of a replica."""
    return replica & ((1 << REPLACEMENT_SHIFT) - 1)


class LogPoint(Struct, frozen=True, gc=False):
    """An end of a log: a position and the term of the entry that ends there. The empty log ends at (0, 0)."""

    position: RaftPosition
    term: Term


class TermRun(Struct, frozen=True, gc=False):
    """Entries of one term, from where the run before it ends up to ``end_position`` (exclusive)."""

    end_position: RaftPosition
    term: Term
