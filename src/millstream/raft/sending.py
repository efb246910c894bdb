"""Sends entries to a peer: reads them from the log and lends them to the transport.

The core orders one range of entries at a time for each peer. Entries in the log cache are lent; the worker reads older
ones, and the order stays open until then. An order that cannot be carried out, or is throttled (`throttle`), is
returned to the core, and the peer is probed again after its next heartbeat. A replica counts as
catching up if it is a learner, or if it lacks entries that are no longer in the log cache.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.errors import MillstreamError, Rejected
from millstream.peers.raft_items import RaftItem

if TYPE_CHECKING:
    from millstream.core.raft.ready import Send
    from millstream.raft.host import GroupHost
    from millstream.raft.replicated import ReplicatedGroup
    from millstream.raft.writes import Writes
    from millstream.storage.log.entry_reads import EntryRead

APPEND_BYTES: Final = 1 << 20
"""Record batches of one append, unless a single batch is larger."""


class Sending:
    """Carries out the orders of one group."""

    __slots__ = ("_group", "_host", "_writes")

    def __init__(self, group: ReplicatedGroup, host: GroupHost, writes: Writes) -> None:
        self._group = group
        self._host = host
        self._writes = writes

    def carry_out(self, send: Send) -> None:
        """Read the entries of an order and send them, now or when the worker has read them."""
        group = self._group
        end = self._writes.log_end
        if send.start > end or (send.start == end and send.limit > end):
            group.core.send_failed(send)
            return
        learns = send.to not in group.configuration.voters and send.start < group.committed_position
        if learns and not self._may_send():
            group.core.send_failed(send)
            return
        limit = min(send.limit, end)
        try:
            found = group.log.read_entries(send.start, limit, APPEND_BYTES)
            if found is None and not learns and not self._may_send():
                group.core.send_failed(send)
                return
            if found is None:
                group.log.read_entries_cold(send.start, limit, APPEND_BYTES, partial(self._on_read, send))
        except Rejected:
            group.fold()
            group.core.send_failed(send)
            return
        if found is not None:
            self._send(send, found, catches_up=learns)

    def _may_send(self) -> bool:
        """Whether the throttle lets entries to a replica that catches up pass."""
        return self._host.installs.throttle.may_send(self._group.group, self._host.now())

    def _on_read(self, send: Send, found: EntryRead | MillstreamError) -> None:
        """The worker has read the entries, or failed to."""
        group = self._group
        if group.closed:
            if not isinstance(found, MillstreamError):
                found.buf.release()
            return
        if isinstance(found, MillstreamError):
            group.warn(f"entries for replica {send.to} can't be read: {found.message}")
            group.core.send_failed(send)
        else:
            self._send(send, found, catches_up=True)
        self._host.schedule(group)

    def _send(self, send: Send, found: EntryRead, *, catches_up: bool) -> None:
        group = self._group
        size = len(found.buf)
        if catches_up:
            self._host.installs.throttle.sent(group.group, size)
        append = group.core.sent(send, found.end, size)
        if append is None:
            found.buf.release()
        elif not self._host.transport.send(send.to, RaftItem(group.group, append, 0, size), found.buf):
            group.core.peer_lost(send.to)
