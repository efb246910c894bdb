"""A shard's connections to other brokers: finds the shard of a group's peer, sends messages, and dispatches those that
arrive.

::

    Raft groups ──send, beats──► Network ──► Dial (node, its shard) ──► turn frame ──►            (one way each)
    Raft groups ◄──on_raft, on_beats── Network ◄── accepted links ◄── turn frame ◄──

Raft messages of this shard go over the connections that this shard dialled; those of a peer arrive on connections that
the peer dialled. Two brokers thus have two connections for each pair of shards that speak, and no rule is needed which
of two to keep. Answers to calls and corrections (``Home``) go back on the connection that they belong to.

**Homes.** A group has a home shard on the peer, which the sender does not know at first. The first message goes to
shard 0, or to the shard from which the group's last message came. A shard that receives a message for a sibling's group
forwards it over the ring, once, and names the home in its answer. Passing on copies; a message of more than
`FORWARD_BYTES_MAX` is dropped instead, and Raft sends it again.

**Identity.** A connection belongs to one disk of one broker (``ReplicaId``). Messages for another disk of the same node
are refused, and hellos are checked by ``admit``: cluster, node, disk.

**Bad input.** A frame that does not decode ends its connection; the line in the log says which peer. **Overload.** See
``dial`` and ``receiving``: every queue has a bound, and what exceeds it is a lost message. **Crash.** This module keeps
nothing on disk.
"""

import struct
from collections.abc import Callable, Container, Sequence
from functools import partial
from socket import socket as TcpSocket  # noqa: N812
from typing import Any, Final

import msgspec

from millstream.errors import Corruption
from millstream.iobuf import IoBuf
from millstream.model.cluster import Incarnation, NodeId
from millstream.model.quantities import ShardId
from millstream.model.replication import ReplicaId, node_of
from millstream.peers.beats import BeatsIn
from millstream.peers.calls import Calls
from millstream.peers.contact_items import CONTACT_VERSION, Followed, Led, LedAgain
from millstream.peers.dial import Dial, DialEvents, Random, Way
from millstream.peers.frames import HELLO_BYTES_MAX, FrameKind
from millstream.peers.greeting import Greetings
from millstream.peers.hello import Hello, Refusal, RefusalReason, Seed, agreed_version, decode_hello
from millstream.peers.items import (
    Answer,
    Beat,
    Beats,
    BeatsAgain,
    Call,
    Failure,
    Home,
    Item,
    Leaders,
    Leadership,
    Status,
    decode_items,
    encode_item,
)
from millstream.peers.link import Events, Link, TlsLink, answer, refuse
from millstream.peers.raft_items import RaftItem, encode_raft
from millstream.peers.receiving import SCRATCH_BYTES, slice_body
from millstream.peers.secured import PeerTls
from millstream.secure.tls_socket import TlsSocket
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply
from millstream.telemetry.log import RateLimit, log

FORWARD: Final = 120
"""Mailbox method: a Raft message for a group of the receiving shard."""

FORWARD_BYTES_MAX: Final = 64 << 10

LINKS_MAX: Final = 1024
"""Accepted connections of a shard: 256 shards of four peers."""

_FORWARD: Final = struct.Struct("<qI")
_refusals: Final = RateLimit(per_minute=6)


class Inbound(msgspec.Struct, frozen=True):
    """Callbacks for arriving connections and messages. The views of a body are valid during the call."""

    admit: Callable[[Hello], Refusal | None]
    """The reason why a hello is refused; None if it is not."""
    raft: Callable[[ReplicaId, RaftItem, Sequence[memoryview]], None]
    """A Raft message. A message whose body found no memory is left out."""
    beats: Callable[[ReplicaId, Sequence[Beat], bool], None]
    """Heartbeats, or (True) replies to heartbeats."""
    led: Callable[[ReplicaId, Led | LedAgain, Callable[[Followed], None]], None]
    """A set of groups that a peer leads, or its repetition, with a function that sends the answer."""
    followed: Callable[[ReplicaId, ShardId, Followed], None]
    """An answer to such a set, of a shard of a peer."""
    leaders: Callable[[ReplicaId, Sequence[Leadership], bool], None]
    """Leaderships that started; with True all that the sender knows."""
    status: Callable[[ReplicaId, Status], None]
    """A sign of life."""
    lost: Callable[[ReplicaId], None]
    """The connection to a peer has ended: what was in flight to it is lost."""
    home_of: Callable[[int], int | None]
    """The group's home shard on this broker; None if this broker has no replica of it."""


class Network:
    """All connections of one shard to other brokers.

    Lifecycle: made with the shard, ``stop`` at its end. Shard: one each.
    Invariants: ``_dials`` has a dial for each (node, shard) that something was sent to. ``_accepted`` holds open links
    only.
    """

    def __init__(
        self,
        shard: Shard,
        hello: Hello,
        address_of: Callable[[NodeId], Seed | None],
        inbound: Inbound,
        random: Random,
        tls: PeerTls | None = None,
    ) -> None:
        """``hello`` describes this shard; its ``target`` is replaced by that of each dial. ``address_of`` returns the
        peer address of a broker. With ``tls`` all connections have it.
        """
        greetings = None if tls is None else Greetings(shard.reactor, tls, HELLO_BYTES_MAX, self._on_greeting)
        self._greetings = greetings
        """Accepted connections with TLS until their hello; None without TLS."""
        self._shard = shard
        self._way = Way(memoryview(bytearray(SCRATCH_BYTES)), hello, tls)
        """To shard 0 of any broker."""
        self._address_of = address_of
        self._inbound = inbound
        self._random = random
        self._dials: dict[tuple[NodeId, int], Dial] = {}
        self._homes: dict[tuple[ReplicaId, int], int] = {}
        self._accepted: dict[Link, dict[bool, BeatsIn]] = {}
        self.calls = Calls(shard.reactor, self._dial)
        """Requests to other brokers and from them."""
        self.on_opened: Callable[[NodeId, int], None] = _ignore
        """Called with node and shard when a connection that this shard dialled opens, or takes items again after it has
        refused some.
        """
        self.on_retired: Callable[[str], None] = _ignore
        """Called when a broker refuses this one for ever, with its reason."""
        shard.mailbox.serve(FORWARD, self._serve_forward)

    def stop(self) -> None:
        """Close every connection."""
        for dial in self._dials.values():
            dial.stop()
        self._dials = {}
        for link in list(self._accepted):
            link.close()
        self._accepted = {}
        if self._greetings is not None:
            self._greetings.close()
        self.calls.stop()

    # Sending

    def send(self, to: ReplicaId, item: RaftItem, body: IoBuf | None = None) -> bool:
        """Send a Raft message at the end of this turn. ``body`` has the record batches of an append and is released
        when they were sent. False if the message is refused: no connection, or too much is queued.
        """
        dial = self._dial(NodeId(node_of(to)), self._home(to, item.group))
        remote = dial.remote
        if remote is not None and remote.replica != to:
            if body is not None:
                body.release()
            return False
        return dial.send(item, body)

    def beats(self, to: ReplicaId, beats: Sequence[Beat], *, reply: bool) -> None:
        """Send heartbeats, or replies to heartbeats, at the end of this turn."""
        node = NodeId(node_of(to))
        by_shard: dict[int, list[Beat]] = {}
        for beat in beats:
            by_shard.setdefault(self._home(to, beat.group), []).append(beat)
        for shard, of_shard in by_shard.items():
            dial = self._dial(node, shard)
            remote = dial.remote
            if remote is not None and remote.replica == to:
                dial.beats(tuple(of_shard), reply=reply)

    def place(self, to: ReplicaId, group: int) -> ShardId:
        """The group's home shard on ``to``, as far as known."""
        return ShardId(self._home(to, group))

    def reaches(self, to: ReplicaId, place: int) -> bool:
        """Whether that shard is connected. One that is not is dialled again and again."""
        remote = self._dial(NodeId(node_of(to)), place).remote
        return remote is not None and remote.replica == to

    def takes_contact(self, to: ReplicaId, place: int) -> bool:
        """Whether that shard is connected, and knows sets of groups."""
        dial = self._dials.get((NodeId(node_of(to)), place))
        remote = dial.remote if dial is not None else None
        if remote is None or remote.replica != to:
            return False
        return (agreed_version(self._way.hello, remote) or 0) >= CONTACT_VERSION

    def contact(self, to: ReplicaId, place: int, item: Led | LedAgain) -> bool:
        """Send a set of groups, or its repetition, at the end of this turn. False if it is refused."""
        return self.takes_contact(to, place) and self._dials[NodeId(node_of(to)), place].say(item)

    def say(self, node: NodeId, item: Item) -> bool:
        """Send ``item`` to shard 0 of ``node`` at the end of this turn. False if it is refused."""
        return self._dial(node, 0).say(item)

    def connect(self, node: NodeId) -> None:
        """Dial shard 0 of ``node``, if that has not happened, so that the connection is there when it is needed."""
        self._dial(node, 0)

    def forget(self, node: NodeId) -> None:
        """``node`` is no longer a member: close what was dialled to it."""
        for key in [key for key in self._dials if key[0] == node]:
            self._dials.pop(key).stop()

    def drop_retired(self, node: NodeId, retired: Container[Incarnation]) -> None:
        """Close the connections with disks of ``node`` that must never take part again, and dial its address of now.
        A process that is paused closes nothing itself.
        """
        for link in [*(dial.link for dial in self._dials.values()), *self._accepted]:
            if link is None or link.remote is None or node_of(link.remote.replica) != node:
                continue
            if link.remote.incarnation in retired:
                link.end("its data directory was replaced")

    def is_connected(self, node: NodeId) -> bool:
        """Whether a message to shard 0 of ``node`` would be sent now."""
        dial = self._dials.get((node, 0))
        return dial is not None and dial.remote is not None

    @property
    def connected(self) -> frozenset[NodeId]:
        """Brokers with which this shard has a connection now, dialled by either side."""
        remotes = [*(dial.remote for dial in self._dials.values()), *(link.remote for link in self._accepted)]
        return frozenset(NodeId(node_of(remote.replica)) for remote in remotes if remote is not None)

    def _home(self, to: ReplicaId, group: int) -> int:
        return self._homes.get((to, group), 0)

    def _dial(self, node: NodeId, shard: int) -> Dial:
        dial = self._dials.get((node, shard))
        if dial is None:
            name = f"broker {node}" if not shard else f"broker {node}, shard {shard}"
            dial = self._dials[node, shard] = Dial(
                self._shard,
                self._way.to(shard),
                partial(self._address_of, node),
                name,
                self._random,
                DialEvents(partial(self._opened, (node, shard)), self._on_answers, self._lost, self._on_refused),
            )
            dial.start()
        return dial

    def _on_refused(self, refusal: Refusal) -> None:
        if refusal.known_reason is RefusalReason.RETIRED:
            self.on_retired(refusal.message)

    def _opened(self, at: tuple[NodeId, int], dial: Dial) -> None:
        remote = dial.remote
        assert remote is not None
        if node_of(remote.replica) != at[0]:
            log.warning("%s answers as broker %d: its address is taken by another one", dial.name, remote.replica)
        self.on_opened(*at)

    def _lost(self, dial: Dial, peer: ReplicaId) -> None:
        self.calls.lost(dial)
        self._inbound.lost(peer)

    # Accepting

    def accept(self, sock: TcpSocket, opening: bytes) -> None:
        """Take over a connection on which a hello with the head ``opening`` was received. With TLS the hello is yet to
        come.
        """
        if self._greetings is None:
            self._greeted(sock, opening)
        else:
            self._greetings.take(sock)

    def _on_greeting(self, sock: TlsSocket, frame: tuple[FrameKind, bytes] | str) -> None:
        """The first frame of a connection with TLS, or (a text) the reason why it is missing."""
        if isinstance(frame, str) or frame[0] is not FrameKind.HELLO:
            self._refused(frame if isinstance(frame, str) else f"its first frame is of kind {frame[0].name}")
            sock.close()
            return
        self._greeted(sock, frame[1])

    def _greeted(self, sock: Any, head: bytes) -> None:
        try:
            remote = decode_hello(head)
        except Corruption as error:
            self._refused(error.message)
            sock.close()
            return
        refusal = self._inbound.admit(remote)
        if refusal is None and len(self._accepted) >= LINKS_MAX:
            refusal = Refusal(0, f"{LINKS_MAX} connections are open")
        if refusal is not None:
            self._refused(f"broker {node_of(remote.replica)}: {refusal.message}")
            refuse(sock, refusal)
            return
        hello = self._way.to(remote.shard).hello
        for link in list(self._accepted):
            other = link.remote
            if other is not None and (other.replica, other.shard) == (remote.replica, remote.shard):
                link.close()
                self._forget_link(link)
        events = Events(_ignore, self._on_turn, _ignore, self._on_accepted_closed)
        kind = Link if self._greetings is None else TlsLink
        link = kind.accept(self._shard, self._way.scratch, sock, hello, remote, events)
        if not link.closed:
            self._accepted[link] = {reply: BeatsIn() for reply in (False, True)}
        if isinstance(link, TlsLink):
            link.receive_rest()

    def _refused(self, why: str) -> None:
        if _refusals.allows():
            log.warning("refused a connection of another broker: %s%s", why, _refusals.left_out())

    def _on_accepted_closed(self, link: Link, reason: str) -> None:
        remote = link.remote
        if remote is not None and link in self._accepted:
            log.info("broker %d, shard %d closed its connection: %s", node_of(remote.replica), remote.shard, reason)
        self._forget_link(link)

    def _forget_link(self, link: Link) -> None:
        self._accepted.pop(link, None)
        self.calls.gone(link)

    # What arrives

    def _on_turn(self, link: Link, head: memoryview, body: Sequence[memoryview] | None) -> None:
        """A frame of a peer's turn, on a connection that the peer dialled."""
        remote = link.remote
        assert remote is not None
        sender = remote.replica
        body_bytes = sum(map(len, body)) if body is not None else None
        for item in decode_items(head, body_bytes):
            match item:
                case RaftItem():
                    self._learn(sender, item.group, remote.shard)
                    if item.body_bytes and body is None:
                        continue
                    views = slice_body(body or (), item.body_start, item.body_bytes) if item.body_bytes else ()
                    self._deliver(link, sender, item, views)
                case Beats() | BeatsAgain():
                    self._deliver_beats(link, sender, remote.shard, item)
                case Led() | LedAgain():
                    self._inbound.led(sender, item, partial(answer, link))
                case Leaders():
                    self._inbound.leaders(sender, item.leaderships, item.full)
                case Status():
                    self._inbound.status(sender, item)
                case Call():
                    self.calls.serve_call(link, sender, item)
                case Answer() | Failure() | Home() | Followed():
                    raise Corruption(f"a {type(item).__name__} is out of place")

    def _on_answers(self, dial: Dial, head: memoryview) -> None:
        """A frame that comes back on a connection of this side."""
        remote = dial.remote
        assert remote is not None
        for item in decode_items(head, 0):
            match item:
                case Answer() | Failure():
                    self.calls.answered(dial, item)
                case Followed():
                    self._inbound.followed(remote.replica, ShardId(remote.shard), item)
                case Home():
                    if item.shard < remote.shards:
                        self._homes[remote.replica, item.group] = item.shard
                case _:
                    raise Corruption(f"a {type(item).__name__} is out of place")

    def _learn(self, sender: ReplicaId, group: int, shard: int) -> None:
        """A message of ``group`` came from that shard of the peer, which is the group's home."""
        key = (sender, group)
        if self._homes.get(key) != shard and (shard or key in self._homes):
            self._homes[key] = shard

    def _deliver(self, link: Link, sender: ReplicaId, item: RaftItem, views: Sequence[memoryview]) -> None:
        home = self._home_here(item.group)
        if home == self._shard.id:
            self._inbound.raft(sender, item, views)
        elif home is not None:
            answer(link, Home(item.group, home))
            if item.body_bytes <= FORWARD_BYTES_MAX:
                self._forward(home, sender, encode_raft(item.group, item.message, item.body_bytes), b"".join(views))

    def _deliver_beats(self, link: Link, sender: ReplicaId, shard: int, item: Beats | BeatsAgain) -> None:
        here: list[Beat] = []
        elsewhere: dict[int, list[Beat]] = {}
        for beat in self._accepted[link][item.reply].expand(item):
            self._learn(sender, beat.group, shard)
            home = self._home_here(beat.group)
            if home == self._shard.id:
                here.append(beat)
            elif home is not None:
                answer(link, Home(beat.group, home))
                elsewhere.setdefault(home, []).append(beat)
        if here:
            self._inbound.beats(sender, here, item.reply)
        for home, beats in elsewhere.items():
            self._forward(home, sender, encode_item(Beats(item.reply, tuple(beats))), b"")

    def _home_here(self, group: int) -> int | None:
        return self._inbound.home_of(group) if self._shard.count > 1 else self._shard.id

    # Over the ring, once

    def _forward(self, shard: int, sender: ReplicaId, head: bytes, body: bytes) -> None:
        self._shard.mailbox.tell(shard, FORWARD, _FORWARD.pack(sender, len(head)) + head + body)

    def _serve_forward(self, from_shard: int, payload: bytes, reply: Reply) -> None:
        """Receive a message that a sibling forwards."""
        _ = from_shard, reply
        sender, size = _FORWARD.unpack_from(payload)
        view = memoryview(payload)[_FORWARD.size :]
        body = view[size:]
        for item in decode_items(view[:size], len(body)):
            if isinstance(item, RaftItem):
                self._inbound.raft(sender, item, (body,) if item.body_bytes else ())
            elif isinstance(item, Beats):
                self._inbound.beats(sender, item.beats, item.reply)


def _ignore(*_: object) -> None:
    """Nothing to do."""
