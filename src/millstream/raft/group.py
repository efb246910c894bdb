"""A Raft group on its home shard: the seam between a partition and the log that replicates it.

``replicate`` is the only way a batch enters a partition. It proposes the batch to the core, which gives it offsets,
and hands the bytes to the log, which writes them in this turn's group commit. When the log says that its end is
durable, the core answers with the commit index; that is the partition's high watermark, and ``on_commit`` is told.

What it promises: a commit is announced only for what a quorum (today: this replica) has synced, once, in order. With
``write_caching`` the announcement does not wait for the sync: what was announced may then be lost in a crash, which
is what the topic asked for; it stays visible when the topic asks for something else. A crash at any point leaves the
log's durable prefix; terms make a rewritten suffix tell-able from what was there. Overload shows as ``ArenaFull`` from
the log, before anything was proposed.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from millstream.core.raft.node import Node
from millstream.iobuf import IoBuf
from millstream.model.quantities import Offset

if TYPE_CHECKING:
    from millstream.storage.log.log import Log


class RaftGroup:
    """One group with its log.

    Shard: created, called and closed on the log's home shard only.
    """

    __slots__ = ("high_watermark", "log", "node", "on_commit", "write_caching")

    def __init__(self, log: "Log", term: int, *, write_caching: bool = False) -> None:
        self.log = log
        self.node = Node(term, log.next_offset)
        self.write_caching = write_caching
        """May change at any time."""
        self.high_watermark = self.node.commit_index
        """End (exclusive) of what was announced, and readers may see."""
        self.on_commit: Callable[[int], None] = _nobody
        log.on_durable = self.on_durable

    @property
    def term(self) -> int:
        return self.node.term

    def replicate(self, views: Sequence[memoryview], size: int, count: int, max_timestamp_ms: int) -> Offset:
        """Produce 6/8. Propose one batch of ``count`` records; return its base offset.

        The bytes are copied before this returns. ``on_commit`` follows when a quorum has synced them.

        Raises:
            iobuf.ArenaFull: no memory for the copy; nothing was proposed.
        """
        node = self.node
        log = self.log
        base: Any = log.next_offset
        term: Any = node.term
        last: Any = base + count - 1  # quantities by annotation: a NewType's call costs 0.1 µs a batch
        pieces = log.make_room(views, size, last, term)
        proposed = node.propose(count)
        assert proposed == base
        log.write(views, size, base, last, term, max_timestamp_ms, pieces)  # pyright: ignore[reportArgumentType]
        if self.write_caching:
            self._announce(node.next_index)
        return base

    def on_durable(self, end_offset: int) -> None:
        """The log's sync has reached ``end_offset`` (exclusive)."""
        commit = self.node.persisted(end_offset, self.node.term)
        if commit > self.high_watermark:
            self._announce(commit)

    def _announce(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self.on_commit(high_watermark)

    def read(self, offset: int, max_bytes: int, *, minimum_one: bool = True) -> IoBuf | None:
        """Committed batches from the log cache; None when they are not there (``log.read_cold`` then)."""
        return self.log.read(Offset(offset), Offset(self.high_watermark), max_bytes, minimum_one)


def _nobody(_high_watermark: int) -> None:
    """A group that nobody watches yet."""
