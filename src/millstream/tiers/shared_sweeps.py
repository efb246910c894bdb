"""When shared objects are swept: shard 0 asks all shards where the logs of their shared partitions start, waits until
readers that began before are done, and has the archive process remove what nobody needs.

An object may have records of several shards, so no shard alone can tell. A shard that does not answer puts the sweep
off. A sweep that was cut off by a crash or an error begins anew; it removes nothing that a repetition would keep.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import MillstreamError
from millstream.model.quantities import Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.shard.context import Shard
    from millstream.shard.mailbox import Reply
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.messages import Swept
    from millstream.tiers.shared_uploads import SharedUploads

STARTS: Final = 58
"""Mailbox method: shard 0 asks where the logs of shared partitions start."""

_ASK_US: Final = 10_000_000

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[tuple[bytes, int, Offset]]).decode


class SharedSweeps:
    """The sweeps of one broker. One per shard; that of shard 0 asks, once it is started."""

    def __init__(
        self,
        shard: Shard,
        uploads: SharedUploads,
        link: ArchiveLink,
        topics: Callable[[], list[bytes]],
        period_us: int,
    ) -> None:
        """``topics`` gives the ids of all topics. ``period_us`` is the time between two sweeps, and that for which
        readers may go on with what was deleted.
        """
        self._shard = shard
        self._uploads = uploads
        self._link = link
        self._topics = topics
        self._period_us = period_us
        self._starts: list[tuple[bytes, int, Offset]] = []
        self._missing = 0
        self._ever = False
        """There was a shared partition since the start: without one there is nothing to sweep."""
        self._failed = False
        shard.mailbox.serve(STARTS, self._serve)

    def start(self) -> None:
        """Sweep from now on."""
        self._shard.reactor.call_later(self._period_us, self._ask)

    def _serve(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, payload
        reply.send(_encode([(*key, archive.log.start_offset) for key, archive in list(self._uploads.archives.items())]))

    def _ask(self) -> None:
        self._starts = []
        self._missing = self._shard.count
        self._failed = False
        for shard in range(self._shard.count):
            self._shard.mailbox.call(shard, STARTS, b"", self._got_starts, _ASK_US)

    def _got_starts(self, answer: bytes | MillstreamError) -> None:
        self._missing -= 1
        if isinstance(answer, MillstreamError):
            self._failed = True
        else:
            self._starts += _decode(answer)
        if self._missing:
            return
        self._ever = self._ever or bool(self._starts)
        if self._failed or not self._ever:
            self.start()
        else:
            self._shard.reactor.call_later(self._period_us, partial(self._sweep, ""))

    def _sweep(self, after: str) -> None:
        self._link.sweep(self._starts, self._topics(), after, self._swept)

    def _swept(self, result: Swept | MillstreamError) -> None:
        if not isinstance(result, MillstreamError) and result.after:
            self._sweep(result.after)
        else:
            self.start()
