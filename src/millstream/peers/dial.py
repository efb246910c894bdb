"""Keeps one connection to a shard of a peer: dials, waits longer after each failure, and collects the messages of a
turn.

::

    send(item, body) ─┐
    beats(…)         ─┼─ end of turn ─► one frame ─► link ─► peer's shard
    say(item)        ─┘

All messages of a turn are sent as one frame at its end. Record batches are lent by their chains until the kernel has
taken them.

**A slow or dead peer** costs nothing and never grows memory. Without an open link everything is refused at once. With
more than `QUEUE_BYTES_MAX` queued, appends are refused (``send`` returns False, which the group's window counts as not
sent) and other messages are dropped; Raft sends both again. After ``say`` was refused, ``opened`` is called once the
queue is empty, as for a new link: the owner says everything again. Newer heartbeats replace older ones that the kernel
has not taken yet.

**Reconnecting.** The wait after a failure doubles from `BACKOFF_MIN_US` to `BACKOFF_MAX_US`, with a random part, so
that brokers that lost a peer together do not return together. After a link that was open for longer than the longest
wait, the next wait is the shortest. One line is logged when a connection opens and one when it is lost; failed attempts
are silent after the first.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from millstream.iobuf import IoBuf
from millstream.model.replication import ReplicaId
from millstream.peers.beats import BeatsIn, BeatsOut
from millstream.peers.frames import HEAD_BYTES_MAX, Buffer, FrameKind, encode_frame
from millstream.peers.hello import Hello, Refusal, Seed
from millstream.peers.items import Beat, Item, encode_item
from millstream.peers.link import Events, Link, TlsLink
from millstream.peers.raft_items import RaftItem, encode_raft
from millstream.peers.secured import PeerTls
from millstream.shard.context import Shard
from millstream.shard.reactor import Timer
from millstream.telemetry.log import log

QUEUE_BYTES_MAX: Final = 8 << 20
"""Twice the window of a group (``RaftOptions.max_in_flight_bytes``): two groups may fill it, and no peer holds more."""

FRAME_BODY_BYTES: Final = 4 << 20
"""Size from which a further item starts another frame. A single append may be larger."""

BACKOFF_MIN_US: Final = 50_000
BACKOFF_MAX_US: Final = 1_000_000

Random = Callable[[], float]
"""A number in [0, 1)."""


class _Chains:
    """Holder of the chains that one frame lends."""

    __slots__ = ("chains",)

    def __init__(self, chains: list[IoBuf]) -> None:
        self.chains = chains

    def release(self) -> None:
        for chain in self.chains:
            chain.release()


class TurnFrame:
    """The messages for one peer's shard in this turn.

    Lifecycle: one a link; `write` empties it. Invariants: the heads are below `HEAD_BYTES_MAX` together.
    """

    __slots__ = ("_beats", "_chains", "_encoders", "_head_bytes", "_heads", "body_bytes", "has_refused")

    def __init__(self) -> None:
        self._heads: list[bytes] = []
        self._head_bytes = 0
        self._chains: list[IoBuf] = []
        self.body_bytes = 0
        """Bytes of record batches."""
        self.has_refused = False
        """The link has refused an item since it opened, or since its queue was empty last."""
        self._beats: dict[bool, tuple[Beat, ...]] = {}
        """Heartbeats (False) and replies (True) that wait; the newest of each group only."""
        self._encoders = {reply: BeatsOut(reply=reply) for reply in (False, True)}

    def __bool__(self) -> bool:
        return bool(self._heads or self._beats)

    def fits(self, body_bytes: int) -> bool:
        """Whether an item with a body of this size may join the frame."""
        return not self._heads or (
            self.body_bytes + body_bytes <= FRAME_BODY_BYTES and self._head_bytes < HEAD_BYTES_MAX // 2
        )

    def add(self, head: bytes, body: IoBuf | None = None) -> None:
        """Put an item into the frame; its body is released when it was sent."""
        self._heads.append(head)
        self._head_bytes += len(head)
        if body is not None:
            self._chains.append(body)
            self.body_bytes += len(body)

    def add_beats(self, beats: tuple[Beat, ...], *, reply: bool) -> None:
        """Put heartbeats in the place of those that wait; groups that are not among them keep theirs."""
        before = self._beats.get(reply)
        if before:
            merged = {beat.group: beat for beat in before}
            merged.update((beat.group, beat) for beat in beats)
            beats = tuple(merged.values())
        self._beats[reply] = beats

    def write(self, link: Link, *, with_beats: bool) -> None:
        """Send the frame. Heartbeats stay where they are unless ``with_beats``."""
        heads = self._heads
        if with_beats and self._beats:
            for reply, beats in self._beats.items():
                item = self._encoders[reply].item(beats)
                if item is not None:
                    heads.append(encode_item(item))
            self._beats = {}
        if not heads:
            return
        chains = self._chains
        body: list[Buffer] = [view for chain in chains for view in chain.views()]
        frame = encode_frame(FrameKind.TURN, heads, body)
        self._heads = []
        self._head_bytes = 0
        self._chains = []
        self.body_bytes = 0
        link.send(frame, _Chains(chains) if chains else None)

    def drop(self) -> None:
        """The link has ended: release everything."""
        for chain in self._chains:
            chain.release()
        self._chains = []
        self._heads = []
        self._beats = {}


class Way(msgspec.Struct, frozen=True):
    """How a shard connects to another: what it says first, and whether with TLS."""

    scratch: memoryview
    hello: Hello
    tls: PeerTls | None

    def to(self, shard: int) -> "Way":
        """The way to another shard of the peer."""
        return msgspec.structs.replace(self, hello=msgspec.structs.replace(self.hello, target=shard))

    def link(self, shard: Shard, family: int, address: tuple[object, ...], host: str, events: Events) -> Link:
        """A link that connects to ``address``, which is that of ``host``.

        Raises:
            OSError: no socket can be made, or the address cannot be reached at all.
        """
        if self.tls is None:
            return Link.dial(shard, self.scratch, family, address, self.hello, events)
        link = TlsLink.dial(shard, self.scratch, family, address, self.hello, events)
        link.secure(self.tls, host)
        return link


class _Attempts:
    """The waits between attempts to connect, and whether the next failure is worth a line in the log.

    ``wait_us`` doubles with each failure. A link that was open for longer than the longest wait starts it again.
    """

    __slots__ = ("_opened_us", "_random", "_wait_us", "silent", "timer")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._wait_us = BACKOFF_MIN_US
        self._opened_us = 0
        self.silent = False
        """A line says already that there is no connection."""
        self.timer: Timer | None = None
        """Timer of the next attempt."""

    def opened(self, now_us: int) -> None:
        """The link is open."""
        self._opened_us = now_us
        self.silent = False

    def lost(self, now_us: int) -> None:
        """The open link ended."""
        if now_us - self._opened_us > BACKOFF_MAX_US:
            self._wait_us = BACKOFF_MIN_US
        self.silent = True

    def next_wait_us(self) -> int:
        """How long to wait before the next attempt."""
        wait_us = self._wait_us
        self._wait_us = min(2 * wait_us, BACKOFF_MAX_US)
        return wait_us + int(wait_us * self._random())

    def cancel(self) -> None:
        """No further attempt."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class DialEvents(msgspec.Struct, frozen=True):
    """Callbacks of the owner of a connection."""

    opened: Callable[["Dial"], None]
    """The link is open, or it takes items again after it has refused some: the peer may have missed something."""
    turn: Callable[["Dial", memoryview], None]
    """The head of a frame that came back; it has no body."""
    lost: Callable[["Dial", ReplicaId], None]
    """An open link has ended."""
    refused: Callable[[Refusal], None]
    """The peer takes no connection of this broker."""


class Dial:
    """The connection to one shard of one peer.

    Lifecycle: ``start`` once, ``stop`` when the peer is no longer needed. Shard: the one that made it.
    Invariants: no attempt is due while ``link`` is set. ``turn`` is empty without an open link.
    """

    def __init__(
        self,
        shard: Shard,
        way: Way,
        where: Callable[[], Seed | None],
        name: str,
        random: Random,
        events: DialEvents,
    ) -> None:
        """``where`` gives the peer's present address, None while it is unknown."""
        self._shard = shard
        self._way = way
        self._where = where
        self._host = ""
        self._events = events
        self._attempts = _Attempts(random)
        self.name = name
        self.link: Link | None = None
        self.turn = TurnFrame()
        self.beats_in = {reply: BeatsIn() for reply in (False, True)}
        self._stopped = False
        self._scheduled = False

    # Life

    def start(self) -> None:
        """Dial now."""
        self._attempts.timer = None
        address = self._where()
        if address is None:
            self._again()
            return
        self._host = address.host
        self._shard.reactor.resolve(address.host, address.port, self._resolved)

    def stop(self) -> None:
        """Close the connection permanently."""
        self._stopped = True
        self._attempts.cancel()
        if self.link is not None:
            self.link.close()
            self.link = None
        self.turn.drop()

    @property
    def remote(self) -> Hello | None:
        """The peer's hello; None while no link is open."""
        link = self.link
        return link.remote if link is not None else None

    def _resolved(self, found: tuple[int, tuple[object, ...]] | OSError) -> None:
        if self._stopped:
            return
        if isinstance(found, OSError):
            self._failed(found.strerror or str(found))
            return
        family, address = found
        events = Events(self._on_opened, self._on_frame, self._on_drained, self._on_closed)
        try:
            self.link = self._way.link(self._shard, family, address, self._host, events)
        except OSError as error:
            self._failed(error.strerror or str(error))

    def _on_opened(self, link: Link) -> None:
        assert link is self.link
        self._attempts.opened(self._shard.reactor.now_us())
        self.turn = TurnFrame()
        self.beats_in = {reply: BeatsIn() for reply in (False, True)}
        log.info("connected to %s", self.name)
        self._events.opened(self)

    def _on_closed(self, link: Link, reason: str) -> None:
        assert link is self.link
        remote = link.remote
        self.link = None
        self.turn.drop()
        if remote is not None:
            self._attempts.lost(self._shard.reactor.now_us())
            log.warning("the connection to %s is lost: %s", self.name, reason)
            self._again()
            self._events.lost(self, remote.replica)
        else:
            self._failed(reason)
            if link.refusal is not None:
                self._events.refused(link.refusal)

    def _failed(self, reason: str) -> None:
        if not self._attempts.silent:
            self._attempts.silent = True
            log.warning("no connection to %s yet: %s; trying again until it answers", self.name, reason)
        self._again()

    def _again(self) -> None:
        if self._stopped:
            return
        self._attempts.timer = self._shard.reactor.call_later(self._attempts.next_wait_us(), self.start)

    # Sending

    def send(self, item: RaftItem, body: IoBuf | None) -> bool:
        """Put a Raft message into this turn's frame. False if it is refused; the chain is released then, too."""
        link = self.link
        size = len(body) if body is not None else 0
        if link is None or link.remote is None or link.queued_bytes + self.turn.body_bytes > QUEUE_BYTES_MAX:
            if body is not None:
                body.release()
            return False
        self._put(encode_raft(item.group, item.message, size), body, size)
        return True

    def say(self, item: Item) -> bool:
        """Put another item into this turn's frame. False if it is refused."""
        link = self.link
        if link is None or link.remote is None or link.queued_bytes > QUEUE_BYTES_MAX:
            self.turn.has_refused = True
            return False
        self._put(encode_item(item), None, 0)
        return True

    def beats(self, beats: tuple[Beat, ...], *, reply: bool) -> None:
        """Put heartbeats into this turn's frame, or into the next that the kernel has room for."""
        if self.link is not None and self.link.remote is not None:
            self.turn.add_beats(beats, reply=reply)
            self._schedule()

    def _put(self, head: bytes, body: IoBuf | None, size: int) -> None:
        turn = self.turn
        if not turn.fits(size):
            assert self.link is not None
            turn.write(self.link, with_beats=False)
        turn.add(head, body)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._shard.reactor.end_of_turn(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        link = self.link
        if link is not None and link.remote is not None and self.turn:
            self.turn.write(link, with_beats=not link.queued_bytes)

    def _on_drained(self, link: Link) -> None:
        if self.turn.has_refused:
            self.turn.has_refused = False
            self._events.opened(self)
        if self.turn:
            self.turn.write(link, with_beats=True)

    # Receiving

    def _on_frame(self, link: Link, head: memoryview, body: object) -> None:
        _ = link, body
        self._events.turn(self, head)
