"""A Raft group with several voters: the pure core of `core.raft`, with this replica's log, its peers and time.

::

    append of a leader ──parse, room──► core.step ──Ready──► writes (`writes`) ──► log
    batch of a client ──► core.propose ────────────────────► log.write
    log synced ──► core.log_persisted ──Ready──► messages, orders to send ──► transport
                                              └► ends ──► `events.on_commit`

The core decides. This module carries out a `Ready` in the order that `core.raft.ready` gives, and translates positions
to offsets for the owner (`group`).

**Promises.** A leader's message is parsed, and room in the log is reserved, before the core sees it. With room for a
part only, the core sees an append that ends there. Entries announced as committed are in this replica's log.

**Bad input.** An append that does not add up, or whose offsets do not continue this log, is dropped and logged; the log
is unchanged. **Crash.** All state here is rebuilt from the log. **Overload.** The leader sends entries again that found
no room. A client's batch gets `ArenaFull`. A vote or a write that the core has decided waits until there is room.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.core.raft.messages import Append, AppendRejected, Configuration, HeartbeatReply, LogStart, Opaque
from millstream.core.raft.raft import Raft
from millstream.core.raft.ready import LogPersisted, Refusal, Role, VoteState
from millstream.errors import Corruption, MillstreamError, Rejected
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.model.replication import NO_REPLICA, NO_TERM, EntryCount, EntryKind, RaftPosition, ReadId, Seed, Term
from millstream.peers.file_items import FilesPart, FilesWanted
from millstream.peers.raft_items import RaftItem
from millstream.raft.arriving import arrived
from millstream.raft.group import GroupEvents, GroupRole, PeerState
from millstream.raft.installing import Receiver, Sender
from millstream.raft.reads import Reads, refused
from millstream.raft.saving import Starts, Votes
from millstream.raft.sending import Sending
from millstream.raft.stored import Folded, OwnerHistory, encode_folded, encoded, note_mended, owner_history, recover
from millstream.raft.writes import Writes
from millstream.storage.log.entries import SentEntries
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.core.raft.options import RaftOptions
    from millstream.core.raft.ready import LogWrite, Outgoing, ReadConfirmed, Ready
    from millstream.model.quantities import RaftGroupId
    from millstream.model.replication import ReplicaId
    from millstream.peers.raft_items import GroupMessage
    from millstream.raft.host import GroupHost
    from millstream.storage.log.entries import SentBatch
    from millstream.storage.log.log import Log

FOLD_CONTROLS: Final = 256
"""Number of control entries that are kept before older ones are folded."""

_LINES_A_MINUTE: Final = 6


class ReplicatedGroup:
    """One replica of one group; `raft.Group` is what its owner sees.

    Lifecycle: ``RaftShard.open`` … ``RaftShard.close``. Shard: that of its log.
    Invariants: ``committed_position`` and ``high_watermark`` lie within the log and never move back, but for what write
    caching showed and a truncation takes. ``_led_term`` is set exactly between ``on_lead`` and ``on_resign``.
    """

    __slots__ = (
        "_announced_serving",
        "_host",
        "_led_term",
        "_owner_state",
        "_reads",
        "_receiver",
        "_sender",
        "_sending",
        "_starts",
        "_votes",
        "_warnings",
        "_writes",
        "closed",
        "committed_offset",
        "committed_position",
        "core",
        "events",
        "group",
        "high_watermark",
        "log",
    )

    elects = True

    def __init__(
        self,
        host: GroupHost,
        group: RaftGroupId,
        log: Log,
        first: Configuration,
        seed: Seed,
        options: RaftOptions,
        least_term: Term = NO_TERM,
        first_term: Term | None = None,
        *,
        created: bool = False,
    ) -> None:
        """``first`` are the first members of the group; a replica that joined later is given none, and learns
        them from its leader. ``least_term`` is a term that clients have seen of the group, while it had a sole voter.
        ``first_term`` and ``created``: `recover`.

        Raises:
            Corruption: a control entry of the log can't be read.
        """
        self._host = host
        self.group = group
        self.log = log
        self.events = GroupEvents()
        if not log.raft.controls.base.payload and not log.raft.controls.base.position:
            log.fold_controls(RaftPosition(0), encode_folded(Folded(first)))
        recovered = recover(log, first, least_term, first_term, created=created)
        self.core = Raft(host.me, recovered, seed, host.now(), options)
        self.committed_position: RaftPosition = self.core.committed
        """End of what is committed and in this log. Written by `_announce`."""
        self.committed_offset: int = log.raft.controls.offset_at(self.committed_position)
        self.high_watermark: int = self.committed_offset
        """End of what was announced to clients, as an offset."""
        self.closed = False
        no_room = partial(host.try_later, self)
        self._writes = Writes(log, self._on_cut, self._on_written, no_room)
        self._sending = Sending(self, host, self._writes)
        self._sender = Sender(self, host)
        self._receiver = Receiver(self, host)
        self._votes = Votes(log, self._on_vote_saved, no_room)
        self._led_term: Term | None = None
        """Term in which this replica leads, as its owner knows."""
        self._announced_serving = False
        self._reads = Reads(log.name)
        self._starts = Starts(log, partial(host.schedule, self), no_room)
        self._warnings = RateLimit(_LINES_A_MINUTE)
        self._owner_state: Callable[[], bytes] = lambda: self.owner_history().state
        log.owner.on_persisted = self._on_persisted
        if not log.files.lost and not self.core.term and recovered.cast is None:
            self._votes.save(recovered.state)  # a replica that is here says so on its disk
        host.schedule(self)

    # What the owner sees

    @property
    def write_caching(self) -> bool:
        """Whether what a quorum has in memory is visible."""
        return self.core.replica.write_caching

    @write_caching.setter
    def write_caching(self, on: bool) -> None:
        self.core.set_write_caching(on)
        self._host.schedule(self)

    @property
    def term(self) -> Term:
        """The term of the leadership from ``on_lead`` to ``on_resign``, else the core's term, durable or not."""
        return self.core.term if self._led_term is None else self._led_term

    @property
    def role(self) -> GroupRole:
        """LEADING from ``on_lead`` to ``on_resign``."""
        return GroupRole.FOLLOWING if self._led_term is None else GroupRole.LEADING

    @property
    def is_serving(self) -> bool:
        """Whether ``on_serving`` was announced for the leadership of now."""
        return self._announced_serving

    @property
    def knows_committed(self) -> bool:
        """See `Group.knows_committed`."""
        return self._announced_serving or (self._led_term is not None and self.core.began_group)

    @property
    def leads(self) -> bool:
        """Whether the core leads now. The owner may learn of it later."""
        return self.core.leads

    @property
    def leader(self) -> ReplicaId:
        """The other replica that leads."""
        return NO_REPLICA if (leader := self.core.leader) == self._host.me else leader

    @property
    def voters(self) -> int:
        """Number of the replicas that vote."""
        return len(self.configuration.voters)

    @property
    def peers(self) -> list[PeerState]:
        """See `Group.peers`."""
        self._host.renew(self)
        led = self.core.replica.leading
        peers = led.peers.items() if led is not None else ()
        return [PeerState(peer, one.received, one.durable, one.contact_us) for peer, one in peers]

    @property
    def end_position(self) -> RaftPosition:
        """End of this replica's log."""
        return self.core.next_position

    def replicate(self, views: Sequence[memoryview], size: int, count: int, max_timestamp_ms: int) -> Offset:
        """Produce 6/8. Propose one batch of ``count`` records and write it; see `Group.replicate`."""
        core, log = self.core, self.log
        self._check_leads()
        base, term = log.next_offset, core.term
        last: Offset = base + count - 1  # pyright: ignore[reportAssignmentType] - a NewType's call costs 0.1 µs a batch
        pieces = log.make_room(views, size, last, term)
        self._host.schedule(self)
        proposed = core.propose(self._host.now(), EntryCount(count))
        assert not isinstance(proposed, Refusal) and proposed.position == log.next_raft_position
        log.write(views, size, base, last, term, max_timestamp_ms, pieces)  # pyright: ignore[reportArgumentType]
        return base

    def propose_log_start(self, offset: Offset) -> None:
        """Let the log start at ``offset``; see `Group.propose_log_start`."""
        if offset > self.committed_offset:
            reason = f"{self.log.name}: offset {offset} is after the committed end {self.committed_offset}"
            raise Rejected(reason, ErrorCode.OFFSET_OUT_OF_RANGE)
        self._propose(LogStart(offset))

    def propose_owner_entry(self, kind: EntryKind, payload: bytes) -> None:
        """Agree on an entry of the owner; see `Group.propose_owner_entry`."""
        self._propose(Opaque(kind, payload))

    def _propose(self, control: LogStart | Opaque) -> None:
        self._check_leads()
        refusal = self.core.propose_control(self._host.now(), control)
        if refusal is not None:
            raise refused(self.log.name, refusal)
        self._host.schedule(self)

    def owner_history(self) -> OwnerHistory:
        """The owner's committed entries, of a group that was just opened."""
        return owner_history(self.log, self.committed_position)

    def fold_with(self, give_state: Callable[[], bytes]) -> None:
        """See `Group.fold_with`."""
        self._owner_state = give_state

    def transfer(self, to: ReplicaId) -> None:
        """Start to hand the leadership over to another voter."""
        refusal = self.core.transfer(self._host.now(), to)
        if refusal is not None:
            raise refused(self.log.name, refusal)
        self._host.schedule(self)

    @property
    def configuration(self) -> Configuration:
        """Members in force, committed or not."""
        return self.core.replica.log.configuration

    def steer(self, voters: tuple[ReplicaId, ...], learners: tuple[ReplicaId, ...] = ()) -> bool:
        """Take the next step towards these members; to be called until it is True (`core.raft.membership.steer`)."""
        if self.core.has_write:
            self.drain()
        self._host.schedule(self)
        if self.closed or self._writes.waiting:
            return False
        return self.core.steer(self._host.now(), voters, learners)

    def begin(self) -> None:
        """The creation of this replica, which was just made, is noted durably (`core.raft.beginning`)."""
        if not self.closed:
            self.core.begin(self._host.now())
            self._host.schedule(self)

    def leave(self) -> bool:
        """Start to hand over the leadership, and take no new one. Returns whether a handover is in progress."""
        under_way = self.core.leave(self._host.now())
        self._host.schedule(self)
        return under_way

    def read_barrier(self, done: Callable[[MillstreamError | None], None]) -> None:
        """Prove that this replica leads now; see `Group.read_barrier`."""
        self._reads.begin(self.core, self._host.now(), done)
        self._host.schedule(self)

    def _check_leads(self) -> None:
        """Whether the core accepts a proposal now. Carries out the pending Ready first."""
        core = self.core
        if core.has_write:
            self.drain()
        if (refusal := core.proposal_refused()) is not None:
            raise refused(self.log.name, refusal)
        if self._writes.waiting:
            raise ArenaFull(f"{self.log.name}: earlier entries wait for room in the write-ahead log")

    # What arrives

    def on_message(self, sender: ReplicaId, message: GroupMessage, views: Sequence[memoryview]) -> None:
        """A message of a peer. The views are an append's record batches, valid during the call."""
        core = self.core
        if self.closed:
            return
        if isinstance(message, FilesWanted):
            self._sender.serve(sender, message)
            return
        if isinstance(message, FilesPart):
            self._receiver.take(sender, message, views)
            return
        if not isinstance(message, Append):
            had = core.durable_of(sender) if isinstance(message, AppendRejected) else None
            core.step(self._host.now(), sender, message)
            self._host.schedule(self)
            if had is not None and (now := core.durable_of(sender)) is not None and now < had:
                self.warn(f"replica {sender} has lost what it had on its disk after position {now}: it is sent again")
            return
        if self._writes.waiting or core.has_write:  # one write at a time: the leader sends again what is dropped
            self._writes.advance()
            self.drain()
            if self._writes.waiting:
                return
        try:
            taken = arrived(self.log, core, message, views)
        except (Rejected, Corruption) as error:
            self.warn(f"an append of replica {sender} is dropped: {error.message}")
            return
        if taken is not None:
            core.step(self._host.now(), sender, taken[0])
            self.drain(taken[1])

    def deadline_passed(self) -> None:
        """A deadline has passed."""
        self.core.deadline_passed(self._host.now())
        self._host.schedule(self)

    def beats(self) -> Sequence[Outgoing]:
        """Heartbeats that are due; empty unless this replica leads."""
        return self.core.beats(self._host.now())

    def peer_lost(self, peer: ReplicaId) -> None:
        """The connection to a peer ended; messages in flight are lost."""
        self.core.peer_lost(peer)
        self._host.schedule(self)

    def try_again(self) -> None:
        """Try again what found no room."""
        if self.closed:
            return
        self._votes.retry.again()
        self._writes.advance()
        self._starts.retry.again()

    def failed(self, verb: str, error: Exception) -> None:
        """A verb of the group has raised what no verb raises; see ``OpenLog.failed``."""
        self.log.failed(verb, error)

    def halt(self) -> None:
        """See `Group.halt`."""
        self.closed = True

    def close(self) -> None:
        """Stop the group, because its log is about to be closed or deleted."""
        self.closed = True
        self._resign()
        self.log.owner.on_persisted = None
        self._writes.drop()
        self._receiver.close()
        self._reads.fail_all()

    def _on_persisted(self, position: RaftPosition, term: Term) -> None:
        self.core.log_persisted(self._host.now(), LogPersisted(position, term))
        self._host.schedule(self)
        if self._led_term is not None:
            self.events.on_synced(self.log.durable_offset)

    # What a Ready asks for

    def drain(self, entries: SentEntries | None = None) -> None:
        """Carry out the core's Readys until one is empty. ``entries`` came with the append that was stepped last."""
        core = self.core
        while not self.closed:
            ready = core.ready()
            role = ready.role
            if role is not None and (role.role is not Role.LEADER or role.term != self._led_term):
                self._resign()
            if ready.state is not None:
                self._votes.save(ready.state)
            if ready.write is not None:
                self._write(ready.write, entries)
                entries = None
            self._note_role(ready)
            for send in ready.sends:
                self._sending.carry_out(send)
            for outgoing in ready.messages:
                self._send(outgoing)
            for needed in ready.installs:
                self._sender.offer(needed)
            if ready.install is not None:
                self._receiver.begin(ready.install)
            self._announce(ready.reads, ready.failed_reads)
            note_mended(self.log, core)
            if ready.deadline_us is not None:
                self._host.set_deadline(self, ready.deadline_us)
            if not ready.sends:
                break

    def _resign(self) -> None:
        if self._led_term is None:
            return
        operator_log.info("%s: leads no more (term %d)", self.log.name, self._led_term)
        self._led_term = None
        self._announced_serving = False
        self.events.on_resign()

    def _note_role(self, ready: Ready) -> None:
        if (role := ready.role) is None:
            return
        self._host.role_changed(self)
        if role.role is Role.LEADER and self._led_term is None:
            operator_log.info("%s: leads in term %d", self.log.name, role.term)
            self._led_term = role.term
            self._host.leads(self)
            self.events.on_lead(role.term)
        elif role.role is Role.FOLLOWER and role.leader != NO_REPLICA:
            operator_log.debug("%s: follows replica %d in term %d", self.log.name, role.leader, role.term)

    def _on_vote_saved(self, state: VoteState) -> None:
        if not self.closed:
            self.core.state_persisted(self._host.now(), state)
            self._host.schedule(self)

    # Writing

    def _write(self, write: LogWrite, entries: SentEntries | None) -> None:
        if write.truncate_to is not None:
            offset = self.log.raft.controls.offset_at(write.truncate_to.position)
            self.high_watermark = min(self.high_watermark, offset)
            self.events.on_truncate(offset)
        if entries is None:
            entries = SentEntries(write.start, write.end, [encoded(one) for one in write.controls])
        self._writes.add(write, entries.from_position(write.start))

    def _on_cut(self, position: RaftPosition, term: Term) -> None:
        """A truncation is durable."""
        if not self.closed:
            self._on_persisted(position, term)

    def _on_written(self, batches: Sequence[SentBatch]) -> None:
        """A write is in the log. One that had to wait was carried out apart from the Ready that asked for it."""
        if self._writes.waiting:
            self._host.schedule(self)
        if batches:
            self.events.on_replicated(batches)

    def _send(self, outgoing: Outgoing) -> None:
        if isinstance(message := outgoing.message, HeartbeatReply):
            self._host.answer_beat(self, outgoing.to, message)
        else:
            self._host.transport.send(outgoing.to, RaftItem(self.group, message))

    # Ends

    def _announce(self, reads: Sequence[ReadConfirmed], failed_reads: Sequence[ReadId]) -> None:
        """Tell the owner how far the group has come, as far as this log has it."""
        core, controls = self.core, self.log.raft.controls
        end = self._writes.log_end
        committed = min(core.committed, end)
        if committed > self.committed_position:
            before, self.committed_position = self.committed_position, RaftPosition(committed)
            self.committed_offset = controls.offset_at(self.committed_position)
            self._apply(before, self.committed_position)
        visible = controls.offset_at(RaftPosition(min(core.visible, end)))
        if visible > self.high_watermark:
            self.high_watermark = visible
            self.events.on_commit(visible)
        if not self._announced_serving and self._led_term is not None and core.is_serving and self._starts.settled:
            self._announced_serving = True
            self.events.on_serving(self._led_term)
        self._reads.end(reads, failed_reads, self.committed_position)

    def _apply(self, start: RaftPosition, end: RaftPosition) -> None:
        """Control entries from ``start`` to ``end`` are committed."""
        for entry in self.core.controls_between(start, end):
            if isinstance(entry.control, LogStart):
                self._starts.agree(Offset(entry.control.offset))
            elif isinstance(entry.control, Opaque):
                self.events.on_owner_entry(EntryKind(entry.control.kind), entry.control.payload)
        if len(self.log.raft.controls.entries) > FOLD_CONTROLS:
            self.fold()

    def fold(self) -> None:
        """Forget the control entries before what the log can send entry by entry."""
        position = min(self.log.first_position, self.committed_position, self.core.durable)
        if position <= self.core.base:
            return
        folded = self.folded_at(RaftPosition(position))
        self.core.fold(RaftPosition(position))
        self.log.fold_controls(RaftPosition(position), folded)

    def folded_at(self, position: RaftPosition) -> bytes:
        """The state that the control entries before a committed ``position``, at or after the base, produce."""
        return encode_folded(Folded(self.core.configuration_at(position), self._owner_state()))

    def warn(self, what: str) -> None:
        """Write a line for an operator, a few a minute at most."""
        if self._warnings.allows():
            operator_log.warning("%s: %s%s", self.log.name, what, self._warnings.left_out())
