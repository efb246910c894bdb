"""One replica's view of a Raft group: positions, terms and what is committed. Pure: numbers in, numbers out.

The host (``raft.group``) drives a node in etcd's order: *propose* gives entries a position, the host persists
them, *persisted* tells the node how far its log is durable, and the answer is the commit index that the host may
make visible. A position is the offset of a record, exclusive ends throughout; the payload never passes through here.

This node has one voter, itself. The rules that hold for any number of voters are kept all the same:

- a replica counts towards a quorum only up to what it has made durable, the leader included;
- the commit index never moves back, and never past the end of the log;
- a completion that was overtaken by a truncation (another term now holds those positions) moves nothing;
- only the leader of the current term proposes.

Bad input (a position past the end, a completion for a term that never was) is a broken host and stops the shard
through an assertion. A crash loses the node; it is rebuilt from the log's end and the last term found there.

Source: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", section 5; completions after
truncation: etcd raft's asynchronous storage writes.
"""


class Node:
    """State of one replica in one group.

    Invariants: ``commit_index <= durable_index <= next_index``; all three are exclusive ends.
    """

    __slots__ = ("commit_index", "durable_index", "next_index", "term")

    def __init__(self, term: int, next_index: int) -> None:
        """A node whose log ends, durable, at ``next_index``; as the only voter all of it is committed."""
        assert term >= 0
        assert next_index >= 0
        self.term = term
        self.next_index = next_index
        self.durable_index = next_index
        self.commit_index = next_index

    def propose(self, count: int) -> int:
        """Give ``count`` entries the next positions; return the first. The host persists, then calls ``persisted``."""
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
        """Positions from ``end_index`` on were taken back in ``term``. What is committed is never taken back."""
        assert end_index >= self.commit_index
        assert term >= self.term
        self.term = term
        self.next_index = end_index
        self.durable_index = min(self.durable_index, end_index)
