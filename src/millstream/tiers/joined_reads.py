"""Reads of the object store that wait for their batches. What comes after every reader has left is for the next one.

A client's fetch waits half a second for the store, and its consumer may ask again only after its own work. Where the
store takes longer than that, the same batches would be requested each time, and no consumer would get them.

At most a sixteenth of the arena is used: the oldest go first, and what is larger is not kept. Each is kept for
`KEPT_US`. Archived batches never change, so it does not matter when they are given.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.errors import MillstreamError
from millstream.tiers.joined_calls import JoinedCalls

if TYPE_CHECKING:
    from collections.abc import Hashable

    from millstream.format.archive import AbortedSpan
    from millstream.iobuf import Arena, IoBuf
    from millstream.shard.reactor import Reactor, Timer

    ReadAnswer = tuple[IoBuf | MillstreamError, list[AbortedSpan]]
    """Batches, and the aborted transactions among them."""

KEPT_US: Final = 60_000_000
"""A consumer that asks less often gets nothing from a store that is so slow."""

_SHARE: Final = 16


class JoinedReads(JoinedCalls["ReadAnswer"]):
    """Those of one shard. Invariant: the chains in ``_kept`` have ``_bytes``, and each has a timer."""

    def __init__(self, reactor: Reactor, arena: Arena) -> None:
        super().__init__()
        self._reactor = reactor
        self._bytes_max = arena.capacity_bytes // _SHARE
        self._bytes = 0
        self._kept: dict[Hashable, tuple[IoBuf, list[AbortedSpan], Timer]] = {}

    def answered(self, key: Hashable, answer: ReadAnswer) -> None:
        """The store has answered: give every reader a chain of its own, or keep the batches for the next one."""
        batches, aborted = answer
        readers = self.take(key)
        if isinstance(batches, MillstreamError):
            for done in readers:
                done(answer)
        elif readers:
            for done in readers:
                done((batches.share(0, len(batches)), aborted))
            batches.release()
        else:
            self._keep(key, batches, aborted)

    def _keep(self, key: Hashable, batches: IoBuf, aborted: list[AbortedSpan]) -> None:
        if len(batches) > self._bytes_max:
            batches.release()
            return
        while self._bytes + len(batches) > self._bytes_max:
            self._drop(next(iter(self._kept)))
        timer = self._reactor.call_later(KEPT_US, partial(self._drop, key))
        self._kept[key] = batches, aborted, timer
        self._bytes += len(batches)

    def take_kept(self, key: Hashable) -> tuple[IoBuf, list[AbortedSpan]] | None:
        """What is kept of a read, which is the caller's then."""
        found = self._kept.pop(key, None)
        if found is None:
            return None
        batches, aborted, timer = found
        timer.cancel()
        self._bytes -= len(batches)
        return batches, aborted

    def close(self) -> None:
        """The shard stops: release what is kept, and keep no more."""
        self._bytes_max = 0
        for key in list(self._kept):
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        found = self.take_kept(key)
        assert found is not None, "its timer was cancelled when it was taken"
        found[0].release()
