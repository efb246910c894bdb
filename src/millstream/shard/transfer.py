"""Transfers records between shards: out at the end of a turn, in when the doorbell rings.

All messages of a turn to one shard leave as one record with at most one doorbell. A record longer than
``RECORD_BYTES_MAX`` travels in several, all but the last tagged. Records that a full ring does not accept wait in the
peer's backlog, and the consumer rings back when it has made room. Receiving never depends on sending, so two shards
with full rings both continue to read, and no cycle can block. The order of a pair's messages is kept.

One turn handles messages for at most ``DRAIN_US``, then sockets are served. When the rings are empty the shard sleeps
as ``mesh`` describes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from millstream.model.quantities import ShardId
from millstream.shard.fence import fence
from millstream.shard.messages import RETURNS, Peer, pack
from millstream.shard.process import EXIT_SOFTWARE

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.shard.mesh import Mesh
    from millstream.shard.reactor import Reactor
    from millstream.telemetry.metrics import StatsSlab

RECORD_BYTES_MAX: Final = 16 * 1024
BACKLOG_BYTES_MAX: Final = 64 << 20
"""Maximum backlog of one peer in bytes. A shard that lets this much accumulate no longer works, and the broker
stops.
"""
DRAIN_US: Final = 300
_CONTINUES: Final = 1  # tag: the message continues in the next record

_clock_ns = time.perf_counter_ns


class _Meters:
    """What the metrics say of the rings of one shard."""

    __slots__ = ("batches", "full", "sent_bytes", "wakes")

    def __init__(self, stats: StatsSlab) -> None:
        self.sent_bytes = stats.counter("ring_sent_bytes")
        self.batches = stats.counter("ring_batches")
        self.wakes = stats.counter("ring_wakes")
        self.full = stats.counter("ring_full")


class RecordTransfer:
    """Sends and receives the records of one shard. ``deliver(peer, record)`` gets every record that arrives."""

    def __init__(
        self,
        shard_id: ShardId,
        mesh: Mesh,
        reactor: Reactor,
        deliver: Callable[[Peer, bytes], None],
        take_back: Callable[[int], None],
    ) -> None:
        self.shard_id = shard_id
        self._reactor = reactor
        self._deliver = deliver
        self._bells = mesh.bells
        self._flags = mesh.flags
        self._bell = mesh.bells[shard_id]
        self._flag = mesh.flags[shard_id]
        self._dirty: list[Peer] = []
        self._blocked: list[Peer] = []
        self.peers: list[Peer] = []
        for other in map(ShardId, range(mesh.shard_count)):
            outbound = None if other == shard_id else mesh.outbound(shard_id, other)
            inbound = None if other == shard_id else mesh.inbound(shard_id, other)
            self.peers.append(Peer(other, outbound, inbound, self.schedule, take_back))
        self._siblings = [peer for peer in self.peers if peer.inbound is not None]
        self._meters = _Meters(reactor.stats)
        if self._siblings:
            reactor.add_reader(self._bell.fd, self._rung)
            self._bell.ring()  # handle records that were sent before this shard existed

    # -- sending

    def schedule(self, peer: Peer) -> None:
        """Schedule ``peer`` for sending at the end of this turn."""
        peer.dirty = True
        if not self._dirty:
            self._reactor.end_of_turn(self._flush)
        self._dirty.append(peer)

    def _flush(self) -> None:
        """Send the messages of this turn: one record and at most one doorbell per shard."""
        dirty, self._dirty = self._dirty, []
        for peer in dirty:
            peer.dirty = False
            if peer.returns:
                tokens = peer.returns.tobytes()
                del peer.returns[:]
                peer.out += (pack(RETURNS, 0, 0, len(tokens), 0, 0), tokens)
            record = b"".join(peer.out)
            peer.out.clear()
            if peer.outbound is None:
                self._reactor.call_soon(self._deliver, peer, record)
            else:
                self._meters.sent_bytes.inc(len(record))
                self._send(peer, record)
        fence()
        flags = self._flags
        for peer in dirty:
            if peer.outbound is not None and flags[peer.shard].sleeps():
                self._meters.wakes.inc()
                self._bells[peer.shard].ring()

    def _send(self, peer: Peer, record: bytes) -> None:
        """Push a record, in parts if it is long. Parts without room wait in the backlog."""
        ring = peer.outbound
        assert ring is not None, "only siblings have rings"
        self._meters.batches.inc()
        if len(record) <= RECORD_BYTES_MAX and not peer.backlog.bytes:
            if ring.push(record):
                return
            self._keep(peer, record, 0)
        else:
            last = len(record) - 1
            for at in range(0, len(record), RECORD_BYTES_MAX):
                end = at + RECORD_BYTES_MAX
                self._keep(peer, record[at:end], _CONTINUES if end <= last else 0)
        self._unblock(peer)

    def _keep(self, peer: Peer, record: bytes, tag: int) -> None:
        peer.backlog.append(record, tag)
        if peer.backlog.bytes > BACKLOG_BYTES_MAX:
            self._reactor.stop(
                EXIT_SOFTWARE, f"shard {peer.shard} has stopped reading what shard {self.shard_id} sends"
            )

    def _unblock(self, peer: Peer) -> None:
        """Push as much of the backlog as fits, and ask to be woken for the remainder."""
        ring = peer.outbound
        assert ring is not None, "only siblings have rings"
        backlog = peer.backlog
        asked = False
        while backlog.records:
            record, tag = backlog.records[0]
            if ring.push(record, tag):
                backlog.drop_first()
            elif asked:
                if peer not in self._blocked:
                    self._meters.full.inc()
                    self._blocked.append(peer)
                return
            else:
                asked = True
                ring.ask_for_room()
                fence()
        ring.has_room_again()
        if peer in self._blocked:
            self._blocked.remove(peer)

    # -- receiving

    def _rung(self) -> None:
        """The doorbell rang: a record arrived, or a consumer made room."""
        self._bell.silence()
        self._flag.set(False)
        self._drain()

    def _drain(self) -> None:
        """Handle the records in the rings for a while; then sleep, or continue in the next turn."""
        limit_ns = _clock_ns() + DRAIN_US * 1000
        for peer in list(self._blocked):
            self._unblock_and_ring(peer)
        for peer in self._siblings:
            ring = peer.inbound
            assert ring is not None, "siblings have rings"
            while (popped := ring.pop()) is not None:
                record, tag = popped
                if tag or peer.partial:
                    peer.partial.append(record)
                    if not tag:
                        record = b"".join(peer.partial)
                        peer.partial.clear()
                        self._deliver(peer, record)
                else:
                    self._deliver(peer, record)
                if _clock_ns() > limit_ns:
                    break
        self._sleep_or_go_on()

    def _unblock_and_ring(self, peer: Peer) -> None:
        self._unblock(peer)
        fence()
        if self._flags[peer.shard].sleeps():
            self._bells[peer.shard].ring()

    def _sleep_or_go_on(self) -> None:
        """Steps C1–C3 of ``mesh``, and the same for producers that wait for room."""
        flag = self._flag
        flag.set(True)
        fence()
        more = False
        for peer in self._siblings:
            ring = peer.inbound
            assert ring is not None, "siblings have rings"
            if ring.producer_waits:
                self._bells[peer.shard].ring()
            more = more or ring.has_records
        if more:
            flag.set(False)
            self._reactor.call_soon(self._drain)
