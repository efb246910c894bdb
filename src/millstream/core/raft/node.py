"""One replica's state of a Raft group: positions, terms and the commit index. Pure: numbers in, numbers out.

The host (``raft.group``) drives a node in etcd's order: *propose* assigns positions to entries, the host persists them,
*persisted* reports how far the log is durable, and returns the commit index that the host may make visible. A position
is the offset of a record; ends are exclusive. Payload never passes through here.

This node has one voter, itself. It follows the rules for any number of voters:

- a replica, the leader included, counts towards a quorum only up to its durable end;
- the commit index never moves back, and never beyond the end of the log;
- a completion that was overtaken by a truncation (another term now holds those positions) has no effect;
- only the leader of the current term proposes.

Invalid input (a position beyond the end, a completion for an unknown term) is a defect of the host and stops the shard
through an assertion. A crash loses the node; it is rebuilt from the log's end and the last term in it.

Source: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", section 5; completions after
truncation: etcd raft's asynchronous storage writes.
"""


class Node:
    """State of one replica in one group.

    Invariants: ``commit_index <= durable_index <= next_index``; all three are exclusive ends.
    """

    __slots__ = ("commit_index", "durable_index", "next_index", "term")

    def __init__(self, term: int, next_index: int) -> None:
        """A node whose log is durable up to ``next_index``. As it is the only voter, all of it is committed."""
        assert term >= 0
        assert next_index >= 0
        self.term = term
        self.next_index = next_index
        self.durable_index = next_index
        self.commit_index = next_index

    def propose(self, count: int) -> int:
        """Assign the next positions to ``count`` entries and return the first. The host persists them, then calls
        ``persisted``.
        """
        assert count > 0
        base = self.next_index
        self.next_index = base + count
        return base

    def persisted(self, end_index: int, term: int) -> int:
        """The log is durable up to ``end_index`` (exclusive), written in ``term``. Returns the commit index."""
        assert term <= self.term
        if term == self.term and end_index > self.durable_index:
            assert end_index <= self.next_index
            self.durable_index = end_index
            self.commit_index = end_index
        return self.commit_index

    def truncated(self, end_index: int, term: int) -> None:
        """Positions from ``end_index`` on were truncated in ``term``. Committed positions are never truncated."""
        assert end_index >= self.commit_index
        assert term >= self.term
        self.term = term
        self.next_index = end_index
        self.durable_index = min(self.durable_index, end_index)
