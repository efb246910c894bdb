"""All Raft groups of one shard: dispatches arriving messages, keeps one timer for all deadlines, and sends heartbeats
by node.

::

    transport ──on_raft, on_beats──► group ──mark──► end of the turn: each marked group drains its core once
                                                        ├► messages, entries    one frame a peer (transport)
                                                        └► replies to heartbeats, joined by peer

At the end of a turn the groups with new events are drained, before the turn's frame goes to the write-ahead log. So a
vote, a term start and the batches of one turn share a sync.

**Bad input.** A message for a group that is not here is dropped: the replica may not be open yet, or be removed. One
whose partition has failed votes, and does nothing else (`failed_voter`). **Crash.** Nothing is kept here. **Overload.**
The transport's queues have bounds; an idle group costs one heartbeat an interval, and its deadline is one entry in a
heap. A group at rest costs neither (`contacts`, `deadlines`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from millstream.core.raft.messages import Heartbeat, HeartbeatReply, VoteRequest
from millstream.core.raft.options import RaftOptions
from millstream.core.raft.quorum import reached
from millstream.model.quantities import RaftGroupId
from millstream.model.replication import NO_TERM, Seed, Term, TimeUs
from millstream.peers.contact_items import Session
from millstream.peers.file_items import FilesPart, FilesWanted
from millstream.peers.items import Beat
from millstream.raft.contacts import HeardSets, LedSets
from millstream.raft.deadlines import Deadlines
from millstream.raft.failed_voter import FailedVoter
from millstream.raft.installs import Installs
from millstream.raft.replicated import ReplicatedGroup
from millstream.telemetry.metrics import StatsSlab

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.core.raft.messages import Configuration
    from millstream.core.raft.ready import Outgoing
    from millstream.model.quantities import ShardId
    from millstream.model.replication import ReplicaId
    from millstream.peers.contact_items import Followed, Led, LedAgain
    from millstream.peers.raft_items import RaftItem
    from millstream.raft.contacts import Answer
    from millstream.raft.deadlines import Clock
    from millstream.raft.host import HostedGroup
    from millstream.raft.transport import Transport
    from millstream.storage.log.log import Log

SESSION_MASK: Final = (1 << 62) - 1

TRY_AGAIN_US: Final = 5_000
"""Delay until something that found no room is tried again: a few ticks of the write-ahead log."""


class _Turn:
    """Groups to be drained at the end of this turn of the reactor."""

    __slots__ = ("_armed", "_clock", "_flush", "groups")

    def __init__(self, clock: Clock, flush: Callable[[], None]) -> None:
        self._clock = clock
        self._flush = flush
        self._armed = False
        self.groups: dict[HostedGroup, None] = {}

    def arm(self) -> None:
        """Flush at the end of this turn."""
        if not self._armed:
            self._armed = True
            self._clock.end_of_turn(self._flush)

    def take(self) -> dict[HostedGroup, None]:
        """The turn ends: its groups."""
        self._armed = False
        groups, self.groups = self.groups, {}
        return groups


class RaftShard:
    """The groups of one shard that have several voters.

    Lifecycle: made with the shard; ``open`` and ``close`` for each group. Shard: one each.
    Invariants: a group is in ``_turn`` only if ``_flush`` is registered for the end of this turn. A group that leads is
    in exactly one of ``_leading`` and ``_resting`` from the end of its first turn as leader on.
    """

    def __init__(
        self,
        clock: Clock,
        me: ReplicaId,
        transport: Transport,
        draw_seed: Callable[[], Seed],
        options: RaftOptions | None = None,
        installs: Installs | None = None,
    ) -> None:
        """``me`` is this broker's disk, as in the configurations of its groups. ``draw_seed`` gives each group the
        random numbers for its waits, and ``installs`` bounds what they receive as files.
        """
        self.me = me
        self.transport = transport
        self.installs = installs or Installs(StatsSlab(0, "shard"), float("inf"))
        self.groups: dict[int, ReplicatedGroup] = {}
        """By the number of the group."""
        self.failed: dict[int, FailedVoter] = {}
        """Replicas whose partition has failed: they vote, and do nothing else."""
        self._clock = clock
        self._draw_seed = draw_seed
        self._options = options or RaftOptions()
        self._turn = _Turn(clock, self._flush)
        self._leading: dict[HostedGroup, None] = {}
        self._resting: dict[HostedGroup, None] = {}
        """Groups that lead, and of which no connected peer needs heartbeats."""
        self._unreached: set[tuple[ReplicaId, ShardId]] = set()
        """Peers of groups at rest that were not connected, and the shards where those groups live there."""
        self._led = LedSets(Session(draw_seed() & SESSION_MASK), transport)
        self._heard = HeardSets(self.groups)
        self._deadlines = Deadlines(clock, self, self._options.election_timeout_us)
        self._stirred: set[int] = set()
        """Groups whose term, role or leader has changed since `quiet` was asked last."""
        self._beating = False
        self._replies: dict[ReplicaId, dict[int, Beat]] = {}
        self._stuck: dict[HostedGroup, None] = {}
        self.forbidden = False
        """No group of this shard may lead, because its broker is drained. Written by `forbid_leadership`."""

    # Groups

    def open(
        self,
        group: RaftGroupId,
        log: Log,
        first: Configuration,
        least_term: Term = NO_TERM,
        first_term: Term | None = None,
        *,
        created: bool = False,
        tells_commits: bool = False,
    ) -> ReplicatedGroup:
        """Bring up this broker's replica of a group on its log, which was just opened. ``first`` are the members that
        the group started with, ``least_term`` is for one that had a sole voter. ``first_term``: the term of the leader
        that the group's creation has assigned. ``created``: the replica was made just now, from nothing, and waits for
        `ReplicatedGroup.begin`. ``tells_commits``: see `RaftOptions`.

        Raises:
            Corruption: the log holds control entries that this release can't read.
        """
        assert group not in self.groups, f"group {group} is opened twice"
        self.stop_voting(group)
        options = msgspec.structs.replace(self._options, tells_commits=tells_commits)
        opened = ReplicatedGroup(
            self, group, log, first, self._draw_seed(), options, least_term, first_term, created=created
        )
        if self.forbidden:
            _forbid(opened, forbidden=True)
        self.groups[group] = opened
        return opened

    def close(self, group: ReplicatedGroup) -> None:
        """Take down a replica before its log is closed or deleted."""
        try:
            group.close()
        finally:
            self.role_changed(group)
            self.groups.pop(group.group, None)
            self._leading.pop(group, None)
            self._turn.groups.pop(group, None)
            self._stuck.pop(group, None)

    def vote_on(self, log: Log, set_aside: Callable[[], None], *, has_led: bool) -> None:
        """The partition of a log has failed, and its group is closed: its replica votes on, until `open` or
        `stop_voting`. One that had lost a part of its log has no vote.
        """
        if not log.files.lost:
            timeout_us = self._options.election_timeout_us
            self.failed[log.group] = FailedVoter(self, log, set_aside, timeout_us, has_led=has_led)

    def stop_voting(self, group: RaftGroupId) -> None:
        """A failed replica is repaired, or removed."""
        self.failed.pop(group, None)

    def forbid_leadership(self, forbidden: bool) -> None:
        """Forbid all groups of this shard to stand for election, or (False) allow it again. Current leaders lead until
        they hand over.
        """
        self.forbidden = forbidden
        for group in list(self.groups.values()):
            try:
                _forbid(group, forbidden=forbidden)
            except Exception as error:  # noqa: BLE001 - the boundary
                group.failed("handover", error)

    def hand_over(self) -> None:
        """Start to hand over each leadership that another replica can take. Groups with no other replica keep their
        leader.
        """
        for group in list(self.groups.values()):
            configuration = group.configuration
            if len({*configuration.voters, *configuration.outgoing}) > 1:
                _leave(group)

    def leave(self) -> int:
        """Hand over every leadership and take no new one. Returns the number of handovers in progress; call again until
        it is 0. Leaderships that no other replica can take stay here.
        """
        return sum(_leave(group) for group in list(self.groups.values()))

    def lead_alone(self, number: RaftGroupId) -> None:
        """Unsafe recovery of one group (`core.raft.forcing`). No effect on a group that leads already."""
        group = self.groups[number]
        try:
            if group.core.has_write:
                group.drain()
            if not group.closed and not group.leads:
                group.core.lead_alone(self.now())
                self.schedule(group)
        except Exception as error:  # noqa: BLE001 - the boundary
            group.failed("election", error)

    def stop(self) -> None:
        """Take down every replica: nothing is appended after this."""
        for group in list(self.groups.values()):
            try:
                self.close(group)
            except Exception as error:  # noqa: BLE001 - the boundary
                group.failed("stop", error)

    def quiet(self) -> frozenset[int]:
        """Groups of which sets say everything now, and the term, role and leader have not changed since the last call:
        those that lead, and of which every connected peer has everything and was there of late, and those that follow.
        """
        since = self._clock.now_us() - self._options.election_timeout_us
        stirred, self._stirred = self._stirred, set()
        groups = self._heard.groups_since(since)
        if self._led.answered_since(since):
            groups.update([group.group for group in self._resting])
        return frozenset(groups - stirred)

    # What arrives (`peers.network.Inbound`)

    def on_raft(self, sender: ReplicaId, item: RaftItem, views: Sequence[memoryview]) -> None:
        """A message for one group. The views are an append's record batches, valid during the call."""
        group = self.groups.get(item.group)
        if group is None and (voter := self.failed.get(item.group)) is not None:
            if not isinstance(item.message, FilesWanted | FilesPart):
                voter.guard("vote", voter.on_message, sender, item.message)
            return
        if group is not None:
            if isinstance(item.message, VoteRequest):
                self._heard.renew(group)  # a replica that has a live leader grants no vote
            try:
                group.on_message(sender, item.message, views)
            except Exception as error:  # noqa: BLE001 - the boundary
                group.failed("replication", error)

    def on_beats(self, sender: ReplicaId, beats: Sequence[Beat], reply: bool) -> None:
        """Heartbeats for several groups, or replies to heartbeats."""
        kind = HeartbeatReply if reply else Heartbeat
        for beat in beats:
            group = self.groups.get(beat.group)
            if group is None:
                if not reply and (voter := self.failed.get(beat.group)) is not None:
                    heartbeat = Heartbeat(beat.term, beat.first, beat.second, beat.round)
                    voter.guard("vote", voter.on_message, sender, heartbeat)
                continue
            try:
                group.on_message(sender, kind(beat.term, beat.first, beat.second, beat.round), ())
            except Exception as error:  # noqa: BLE001 - the boundary
                group.failed("heartbeat", error)

    def on_lost(self, peer: ReplicaId) -> None:
        """The connection to a peer was lost, and with it what was in flight."""
        self._led.lost(peer)
        for group in (*self._leading, *self._resting):
            self._peer_lost(group, peer)

    def _peer_lost(self, group: HostedGroup, peer: ReplicaId) -> None:
        try:
            group.peer_lost(peer)
        except Exception as error:  # noqa: BLE001 - the boundary
            group.failed("lost peer", error)

    def on_led(self, sender: ReplicaId, item: Led | LedAgain, answer: Answer) -> None:
        """Groups that ``sender`` leads."""
        for number in self._heard.on_led(self.now(), sender, item, answer):
            self._deadlines.unpark(RaftGroupId(number))
        self._turn.arm()

    def on_followed(self, sender: ReplicaId, place: ShardId, item: Followed) -> None:
        """An answer to the groups that are led here, of one shard of a peer."""
        for number in self._led.on_followed(self.now(), sender, place, item):
            group = self.groups.get(number)
            if group is not None:
                self._peer_lost(group, sender)

    # What groups ask for (`GroupHost`)

    def now(self) -> TimeUs:
        """Monotonic time."""
        return TimeUs(self._clock.now_us())

    def schedule(self, group: HostedGroup) -> None:
        """Drain the group at the end of this turn."""
        self._turn.groups[group] = None
        if group in self._resting:
            del self._resting[group]
            self._leading[group] = None
            self._deadlines.unpark(group.group)
        self._turn.arm()

    def set_deadline(self, group: HostedGroup, deadline_us: TimeUs) -> None:
        """Tick the group then."""
        self._deadlines.set(group, deadline_us)

    def try_later(self, group: HostedGroup) -> None:
        """Let the group try again what found no room."""
        if not self._stuck:
            self._clock.call_at(self._clock.now_us() + TRY_AGAIN_US, self._try_again)
        self._stuck[group] = None

    def call_later(self, delay_us: int, callback: Callable[[], None]) -> None:
        """Call back after ``delay_us``."""
        self._clock.call_at(self._clock.now_us() + delay_us, callback)

    def renew(self, group: HostedGroup) -> None:
        """Tell the group's core of the contacts that sets have renewed."""
        self._heard.renew(group)
        self._led.renew(group)

    def role_changed(self, group: HostedGroup) -> None:
        """Remove the group from all sets that were sent or received."""
        self._heard.drop(group)
        self._led.leave(group)
        if self._resting.pop(group, self) is None:
            self._leading[group] = None
        self._stirred.add(group.group)
        self._deadlines.unpark(group.group)

    def answer_beat(self, group: HostedGroup, to: ReplicaId, reply: HeartbeatReply) -> None:
        """Send a reply with the others of this turn."""
        beat = Beat(group.group, reply.term, reply.received, reply.durable, reply.round)
        self._replies.setdefault(to, {})[group.group] = beat
        self._turn.arm()

    def leads(self, group: HostedGroup) -> None:
        """Send the group's heartbeats as long as it leads."""
        self._leading[group] = None
        if not self._beating:
            self._beating = True
            self._beat_later()

    # What deadlines ask for (`deadlines.Sets`)

    def vouched_us(self, group: HostedGroup) -> TimeUs | None:
        """When the sets had contact that a group at rest needs; None for a group that is not at rest."""
        if not group.leads:
            return self._heard.heard_us(group.group)
        if group not in self._resting:
            return None
        now, number = self.now(), group.group
        return TimeUs(
            reached(
                group.core.replica.log.configuration,
                lambda voter: now if voter == self.me else self._led.answered_us(number, voter) or 0,
            )
        )

    def oldest_us(self, after_us: int) -> TimeUs | None:
        """The oldest contact of all sets that have groups, of those later than ``after_us``."""
        return min((at for at in (*self._led.times(), *self._heard.times()) if at > after_us), default=None)

    def silent_since(self, at_us: int) -> list[RaftGroupId]:
        """The groups of all sets without contact since then."""
        return [RaftGroupId(group) for group in (*self._led.silent_since(at_us), *self._heard.silent_since(at_us))]

    # Turns

    def _flush(self) -> None:
        for group in self._turn.take():
            try:
                group.drain()
            except Exception as error:  # noqa: BLE001 - the boundary
                group.failed("replication", error)
        replies, self._replies = self._replies, {}
        for to, beats in replies.items():
            self.transport.beats(to, tuple(beats.values()), reply=True)
        self._heard.answers()
        if self._led.is_due:
            self._led.is_due = False
            self._led.send()

    def _try_again(self) -> None:
        stuck, self._stuck = self._stuck, {}
        for group in stuck:
            try:
                group.try_again()
            except Exception as error:  # noqa: BLE001 - the boundary
                group.failed("replication", error)

    # Time

    def _beat_later(self) -> None:
        self._clock.call_at(self._clock.now_us() + self._options.heartbeat_us, self._beat)

    def _beat(self) -> None:
        """One interval has passed: the heartbeats of all groups that lead, by peer, without those of groups at rest."""
        by_peer: dict[ReplicaId, list[Beat]] = {}
        self._wake_reached()
        leading, self._leading = self._leading, {}
        reached_now: dict[tuple[ReplicaId, ShardId], bool] = {}
        for group in leading:
            if not group.leads:
                continue
            peers = group.core.peers
            at_rest = {peer for peer in peers if self._led.rests(group, peer)}
            away = self._away(group, peers, at_rest, reached_now)
            if at_rest and len(at_rest) + len(away) == len(peers):
                self._resting[group] = None
                self._unreached |= away
                continue
            self._leading[group] = None
            for outgoing in self._beats_of(group):
                if outgoing.to in at_rest:
                    continue
                beat = outgoing.message
                assert isinstance(beat, Heartbeat)
                due = Beat(group.group, beat.term, beat.committed, beat.visible, beat.round)
                by_peer.setdefault(outgoing.to, []).append(due)
        for to, beats in by_peer.items():
            self.transport.beats(to, beats, reply=False)
        if not self._led.is_empty:
            self._led.is_due = True
            self._turn.arm()
        if self._leading or self._resting or self._led.is_due:
            self._beat_later()
        else:
            self._beating = False

    def _beats_of(self, group: HostedGroup) -> Sequence[Outgoing]:
        try:
            return group.beats()
        except Exception as error:  # noqa: BLE001 - the boundary
            group.failed("heartbeat", error)
            return ()

    def _away(
        self,
        group: HostedGroup,
        peers: tuple[ReplicaId, ...],
        at_rest: set[ReplicaId],
        reached_now: dict[tuple[ReplicaId, ShardId], bool],
    ) -> set[tuple[ReplicaId, ShardId]]:
        """Where the other peers are, of those that are not connected: no heartbeat reaches them. ``reached_now`` is
        what was found for other groups in this interval.
        """
        away: set[tuple[ReplicaId, ShardId]] = set()
        for peer in peers:
            if peer not in at_rest:
                place = self.transport.place(peer, group.group)
                if (peer, place) not in reached_now:
                    reached_now[peer, place] = self.transport.reaches(peer, place)
                if not reached_now[peer, place]:
                    away.add((peer, place))
        return away

    def _wake_reached(self) -> None:
        """A peer that was not connected is: the groups at rest have heartbeats for it."""
        if any(self.transport.reaches(peer, place) for peer, place in self._unreached):
            self._unreached = set()
            resting, self._resting = self._resting, {}
            for group in resting:
                self._leading[group] = None
                self._deadlines.unpark(group.group)


def _forbid(group: ReplicatedGroup, *, forbidden: bool) -> None:
    """A sole voter stands for election in any case, because no other replica can lead."""
    group.core.forbid_leadership(forbidden and len(group.configuration.voters) > 1)


def _leave(group: ReplicatedGroup) -> bool:
    """Start to hand over; whether a handover is in progress."""
    try:
        return group.leave()
    except Exception as error:  # noqa: BLE001 - the boundary
        group.failed("handover", error)
        return False
