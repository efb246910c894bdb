"""When shared objects are swept: one broker asks all shards of all brokers from where on their shared partitions need
shared objects, which is where the log starts or what is joined ends. It waits until readers that started before are
done, and has its archive process remove what is unused.

An object may have records of several brokers, so none alone can tell. In a cluster the broker that leads the controller
sweeps. What is not answered for is needed: an object with records of a partition of which no replica answered stays.
Any replica will do, because each knows a start that was committed, which later ones only exceed. A start counts when
it is not lost with a disk (`shared_wal`): a restore that does not know it needs what is before it. A sweep that was cut
off by a crash or an error starts again; it removes nothing that a repetition would keep, and two at once do no harm.
After a sweep the logs in the store of lives that are over lose what the archive has (`restoring`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from millstream.errors import MillstreamError
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log
from millstream.tiers.messages import SharedStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.model.cluster import NodeId
    from millstream.model.replication import ReplicaId
    from millstream.model.shared import SharedPartition
    from millstream.peers.calls import CallDone, Calls
    from millstream.shard.context import Shard
    from millstream.shard.mailbox import Reply
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.messages import Swept
    from millstream.tiers.partition_archive import PartitionArchive
    from millstream.tiers.shared_uploads import SharedUploads

STARTS: Final = 58
"""Mailbox method: shard 0 asks where the logs of shared partitions start."""

BROKER_STARTS: Final = 24
"""Method of ``peers.calls``: the same, of all shards of a broker, from the entry with the number that is asked for on.
"""

ENTRIES_MAX: Final = 2000
"""In one answer of a broker."""

_ASK_US: Final = 10_000_000
_LINES: Final = RateLimit(per_minute=2)

Starts: TypeAlias = list[SharedStart]
"""Of one partition there may be several, of which the latest counts."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[SharedStart]).decode


class SharedSweeps:
    """The sweeps of one broker. One per shard; that of shard 0 asks, once it is started."""

    def __init__(
        self,
        shard: Shard,
        uploads: SharedUploads,
        link: ArchiveLink,
        topics: Callable[[], list[bytes]],
        period_us: int,
        calls: Calls | None,
    ) -> None:
        """``topics`` gives the ids of all topics. ``period_us`` is the time between two sweeps, and that for which
        readers may continue with what was deleted. ``calls`` reach the other brokers.
        """
        self._calls = calls
        self._others: Callable[[], Iterable[NodeId]] = tuple
        self._is_due: Callable[[], bool] = _always
        self._shard = shard
        self._uploads = uploads
        self._link = link
        self._topics = topics
        self._period_us = period_us
        self._starts: Starts = []
        self._missing = 0
        self._ever = False
        """There was a shared partition since the start: without one there is nothing to sweep."""
        shard.mailbox.serve(STARTS, self._serve)
        if shard.id == 0 and calls is not None:
            calls.serve(BROKER_STARTS, self._serve_broker)

    def start(self, others: Callable[[], Iterable[NodeId]] = tuple, is_due: Callable[[], bool] | None = None) -> None:
        """Sweep from now on. ``others`` gives the other brokers that are alive, ``is_due`` whether this one sweeps."""
        self._others = others
        self._is_due = is_due or _always
        self._later()

    def _later(self) -> None:
        self._shard.reactor.call_later(self._period_us, self._ask)

    def _serve(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, payload
        reply.send(_encode([_start_of(key, archive) for key, archive in list(self._uploads.archives.items())]))

    def _ask_here(self, done: Callable[[Starts], None]) -> None:
        """Ask all shards of this broker; one that does not answer is left out."""
        found: Starts = []
        missing = self._shard.count

        def got(answer: bytes | MillstreamError) -> None:
            nonlocal missing
            missing -= 1
            if not isinstance(answer, MillstreamError):
                found.extend(_decode(answer))
            if not missing:
                done(sorted(found, key=lambda one: (one.topic_id, one.partition_index)))

        for shard in range(self._shard.count):
            self._shard.mailbox.call(shard, STARTS, b"", got, _ASK_US)

    def _serve_broker(self, sender: ReplicaId, payload: bytes, timeout_ms: int, done: CallDone) -> None:
        _ = sender, timeout_ms
        first = int.from_bytes(payload, "little")
        self._ask_here(lambda found: done(_encode(found[first : first + ENTRIES_MAX])))

    def _ask(self) -> None:
        if not self._is_due():
            self._later()
            return
        self._starts = []
        others = () if self._calls is None else tuple(self._others())
        self._missing = 1 + len(others)
        self._ask_here(self._got_starts)
        for node in others:
            self._ask_broker(node, 0)

    def _ask_broker(self, node: NodeId, first: int) -> None:
        assert self._calls is not None, "other brokers are asked over calls"

        def got(answer: bytes | MillstreamError) -> None:
            found: Starts = [] if isinstance(answer, MillstreamError) else _decode(answer)
            if len(found) == ENTRIES_MAX:
                self._starts += found
                self._ask_broker(node, first + ENTRIES_MAX)
            else:
                self._got_starts(found)

        self._calls.call(node, BROKER_STARTS, first.to_bytes(8, "little"), _ASK_US // 1000, got)

    def _got_starts(self, found: Starts) -> None:
        self._starts += found
        self._missing -= 1
        if self._missing:
            return
        self._ever = self._ever or bool(self._starts)
        if self._ever:
            self._shard.reactor.call_later(self._period_us, partial(self._sweep, ""))
        else:
            self._later()

    def _sweep(self, after: str) -> None:
        self._link.sweep(self._starts, self._topics(), after, self._swept)

    def _swept(self, result: Swept | MillstreamError) -> None:
        if not isinstance(result, MillstreamError) and result.after:
            self._sweep(result.after)
        elif self._uploads.wal is not None:
            self._link.clean_logs(self._cleaned)
        else:
            self._later()

    def _cleaned(self, error: MillstreamError | None) -> None:
        """Logs of lives that are over have lost what the archive has."""
        if error is not None and _LINES.allows():
            operator_log.warning("logs in the store that are over are not cleaned: %s", error.message)
        self._later()


def _start_of(key: SharedPartition, archive: PartitionArchive) -> SharedStart:
    start = min(archive.log.start_offset, max(archive.start.safe(), archive.start.saved))
    return SharedStart(*key, start, max(start, archive.small_ranges.joined_to))


def _always() -> bool:
    return True
