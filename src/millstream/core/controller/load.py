"""How many replicas and leaderships each broker holds: what placement goes by.

Derived from the topics of a state; kept with it so that a request for one topic does not count all of them.
"""

from collections.abc import Iterable, Sequence

from millstream.core.controller.commands import PartitionState


class Load:
    """Replicas and preferred leaders by node id.

    Invariant: no count is 0; in a state they are the sums over all partitions.
    """

    __slots__ = ("leaders", "replicas")

    def __init__(self) -> None:
        self.replicas: dict[int, int] = {}
        self.leaders: dict[int, int] = {}

    def copy(self) -> "Load":
        """Counts of its own."""
        other = Load()
        other.replicas = dict(self.replicas)
        other.leaders = dict(self.leaders)
        return other

    def add(self, partitions: Iterable[PartitionState]) -> None:
        """Count ``partitions`` in."""
        for partition in partitions:
            self.add_replicas(partition.replicas)

    def remove(self, partitions: Iterable[PartitionState]) -> None:
        """Count ``partitions`` out, which were counted in."""
        for partition in partitions:
            for node in partition.replicas:
                _count(self.replicas, node, -1)
            if partition.replicas:
                _count(self.leaders, partition.replicas[0], -1)

    def change(self, before: Sequence[PartitionState], after: Sequence[PartitionState]) -> None:
        """Partitions of a topic were replaced or added. A partition that is the same object counts as it did: a move of
        one partition costs no counting of all others.
        """
        pairs = list(zip(before, after, strict=False))
        self.remove(old for old, new in pairs if old is not new)
        self.add(new for old, new in pairs if old is not new)
        self.remove(before[len(pairs) :])
        self.add(after[len(pairs) :])

    def add_replicas(self, replicas: tuple[int, ...]) -> None:
        """Count one partition in; the first of ``replicas`` is the preferred leader."""
        for node in replicas:
            _count(self.replicas, node, 1)
        if replicas:
            _count(self.leaders, replicas[0], 1)


def _count(counts: dict[int, int], node: int, by: int) -> None:
    now = counts.get(node, 0) + by
    if now:
        counts[node] = now
    else:
        del counts[node]
