"""The shell of one core in the simulated world: it does what a `Ready` says, over a disk and a network that may fail.

A slot is a machine: its disk stays through crashes. Its identity changes when the disk is replaced by an empty one. The
log in memory is what the log cache would hold; it is built from `LogWrite`s as the production log is, so that a core
that hands out wrong positions is found.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from millstream.core.raft.messages import ControlEntry, InstallOffer
from millstream.core.raft.raft import Raft
from millstream.core.raft.ready import UNKNOWN_END, Recovered, Refusal, Role, VoteState
from millstream.model.replication import EntryCount, RaftPosition, Seed, Term, TimeUs, node_of, replica_id
from sim.raft.disk import Adopt, Fold, LogDisk, Vote, Write
from sim.raft.image import LogImage, make_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.core.raft.messages import Configuration, Message
    from millstream.core.raft.ready import Install, LogWrite, Ready, Send
    from millstream.model.replication import ReplicaId
    from sim.raft.image import Unit
    from sim.raft.world import World


class Parked(NamedTuple):
    """An operation whose acknowledgement waits: where its batch ends, in which term, and its number."""

    end: int
    term: int
    value: int


class SimReplica:
    """One slot. ``core`` is None while it is down; an event of an earlier ``life`` is dropped."""

    def __init__(self, world: World, slot: int, configuration: Configuration) -> None:
        self.world = world
        self.slot = slot
        self.identity: ReplicaId = replica_id(slot)
        self.first_configuration = configuration
        self.disk = LogDisk(configuration)
        self.memory = LogImage(configuration)
        self.core: Raft | None = None
        self.life = 0
        self.paused_until = 0
        self.clock_offset = 1_000_000 * slot
        self.parked: deque[Parked] = deque()
        self.committed = 0
        """Committed end in the last Ready."""
        self.damaged_until: RaftPosition | None = None
        """End of the disk's log before some of it went bad, until a leader has mended it."""
        self.excused = False
        """Durable entries of this disk went bad, and the group has not made up for it: its copies do not count."""
        self.in_force = configuration
        """Members that the core went by when the last Ready was done."""
        self.created = False
        """It is durable that the replica was made: without its files it has lost them."""
        self._chain_offered: dict[RaftPosition, int] = {}

    # Life

    def start(self) -> None:
        """Come up with what the disk holds."""
        assert self.core is None
        self.life += 1
        image = self.disk.image
        self.memory = LogImage(image.base_configuration)
        self.memory.reset(image.base, image.base_chain, image.base_configuration)
        for unit in image.units:
            self.memory.append(unit)
        controls = tuple(
            ControlEntry(RaftPosition(unit.start), Term(unit.term), unit.control)
            for unit in image.units
            if unit.control is not None
        )
        recovered = Recovered(
            image.base_configuration,
            self.disk.state,
            image.base,
            image.runs(),
            controls,
            committed=image.base.position,
            damaged_until=self.damaged_until,
            cast=self._cast(),
            created=not self.created,
        )
        self.committed = image.base.position
        seed = self.world.chance("replica").getrandbits(64)
        self.core = Raft(self.identity, recovered, Seed(seed), self.now(), self.world.knobs.options)
        self.core.set_write_caching(self.world.knobs.write_caching)
        self.world.note(1, self.slot, self.life)
        self.world.after(self.world.knobs.options.heartbeat_us, self, self.beat)
        if self.created:
            self.core.begin(self.now())  # a call that comes too late leads nowhere
        self.drain()

    def _cast(self) -> VoteState | None:
        """The vote that the creation of the group has cast for its first voters."""
        voters = self.first_configuration.voters
        if not self.world.knobs.assigned or len(voters) < 2 or self.identity not in voters:
            return None
        return VoteState(Term(self.world.knobs.first_term), voters[0])

    def crash(self) -> None:
        """Lose what is in memory and part of what is not synced."""
        assert self.core is not None
        self.core = None
        self.life += 1
        self.parked.clear()
        self.paused_until = 0
        self.disk.crash(self.world.chance("crash"))
        self.world.note(2, self.slot, self.disk.image.end)

    def replace(self) -> None:
        """Come back with an empty disk and, as is the rule, as a new member (A13)."""
        assert self.core is None
        self.identity = replica_id(self.slot, (self.identity >> 32) + 1)
        self.disk = LogDisk(self.first_configuration)
        self.excused = False
        self.damaged_until = None
        self.committed = 0

    def wipe(self, members: Configuration) -> None:
        """Come back with an empty disk as the member that it was. The metadata say who the members are."""
        assert self.core is None
        self.disk = LogDisk(members)
        self.damaged_until = UNKNOWN_END
        self.excused = True
        self.committed = 0

    def now(self) -> TimeUs:
        """This machine's monotonic clock."""
        return TimeUs(self.world.now + self.clock_offset)

    # Events

    def receive(self, sender: ReplicaId, to: ReplicaId, message: Message, units: Sequence[Unit], chain: int) -> None:
        """A message has arrived for the identity that this slot had when it was sent."""
        core = self.core
        if core is None or to != self.identity:
            return
        if isinstance(message, InstallOffer):
            self._chain_offered = {message.end.position: chain}
        core.step(self.now(), sender, message)
        self.drain(units)

    def deadline_passed(self) -> None:
        """The deadline has passed."""
        if self.core is not None:
            self.core.deadline_passed(self.now())
            self.drain()

    def beat(self) -> None:
        """The interval of heartbeats has passed."""
        core = self.core
        if core is None:
            return
        for outgoing in core.beats(self.now()):
            self.world.send(self, outgoing.to, outgoing.message)
        self.world.after(self.world.knobs.options.heartbeat_us, self, self.beat)

    def synced(self) -> None:
        """A sync has ended."""
        world, core = self.world, self.core
        stalled = self.disk.stalled_until
        if stalled > world.now:
            world.at(stalled, self, self.synced)
            return
        done = self.disk.end_sync()
        assert core is not None
        if done.state is not None:
            core.state_persisted(self.now(), done.state)
            self.drain()
            self._begin(core)
        if done.log is not None:
            core.log_persisted(self.now(), done.log)
            world.judge.on_durable(self, core.durable)
            self.drain()
        if core.replica.patience.damaged_until is None:
            self.damaged_until = None
        self._sync()

    def _begin(self, core: Raft) -> None:
        """The vote of this replica is durable, so that the replica counts as made and takes part."""
        self.created = True
        core.begin(self.now())
        self.drain()

    # A client's wishes

    def propose(self, value: int, count: int) -> bool:
        """Append a batch of ``count`` records; true if the core took it."""
        core = self.core
        assert core is not None
        proposed = core.propose(self.now(), EntryCount(count))
        if isinstance(proposed, Refusal):
            return False
        unit = make_unit(self.memory.end_chain, proposed.position, proposed.position + count, proposed.term, value)
        self._append((unit,))
        self.disk.queue.append(Write(None, (unit,), unit.end, proposed.term))
        self.parked.append(Parked(unit.end, unit.term, value))
        self.drain()
        return True

    # What a Ready asks for

    def drain(self, units: Sequence[Unit] = ()) -> None:
        """Do what the core's Ready says, until it says nothing more."""
        core = self.core
        assert core is not None
        while True:
            ready = core.ready()
            if ready.state is not None:
                self.disk.queue.append(Vote(ready.state))
            if ready.write is not None:
                self._write(ready.write, units)
                units = ()
            if ready.role is not None:
                self._change_role(ready)
            for send in ready.sends:
                self._read_and_send(send)
            for outgoing in ready.messages:
                self.world.send(self, outgoing.to, outgoing.message)
            for needed in ready.installs:
                self.world.after(self.world.knobs.delay_us, self, self._offer, needed.to)
            if ready.install is not None:
                self._fetch(ready.install)
            for read in ready.reads:
                self.world.judge.on_read(self, read.read_id, read.position)
            if ready.committed > self.committed:
                self._commit(ready.committed)
            self._acknowledge(ready.visible)
            if ready.deadline_us is not None:
                self.world.at(ready.deadline_us - self.clock_offset, self, self.deadline_passed)
            if not ready.sends:
                break
        self.in_force = core.replica.log.configuration
        self._sync()

    def _write(self, write: LogWrite, units: Sequence[Unit]) -> None:
        if write.truncate_to is not None:
            position = write.truncate_to.position
            self.world.judge.on_truncate(self, position, self.memory.truncate(position))
        controls = {entry.position: entry for entry in write.controls}
        records = {unit.start: unit for unit in units}
        terms = list(write.runs)
        built: list[Unit] = []
        position = int(write.start)
        assert position == self.memory.end
        chain = self.memory.end_chain
        while position < write.end:
            term = next(run.term for run in terms if run.end_position > position)
            control = controls.get(RaftPosition(position))
            if control is not None:
                assert control.term == term
                unit = make_unit(chain, position, position + 1, term, 0, control.control)
            else:
                sent = records[position]
                assert sent.term == term
                unit = make_unit(chain, position, sent.end, term, sent.value)
            built.append(unit)
            position, chain = unit.end, unit.chain
        assert position == write.end
        self._append(built)
        cut = None if write.truncate_to is None else int(write.truncate_to.position)
        self.disk.queue.append(Write(cut, tuple(built), write.end, write.term))

    def _append(self, units: Sequence[Unit]) -> None:
        for unit in units:
            self.memory.append(unit)
            self.world.judge.on_append(self, unit)

    def _change_role(self, ready: Ready) -> None:
        assert ready.role is not None
        self.world.note(3, self.slot, ready.role.term, ready.role.leader)
        if ready.role.role is Role.LEADER:
            self.world.judge.on_lead(self, ready.role.term)
        else:
            self.parked.clear()

    def _read_and_send(self, send: Send) -> None:
        knobs = self.world.knobs
        if knobs.cold_reads and self.world.chance("reads").random() < knobs.cold_reads:
            self.world.after(knobs.delay_us, self, self._send_late, send)
        else:
            self._send(send)

    def _send_late(self, send: Send) -> None:
        self._send(send)
        self.drain()

    def _send(self, send: Send) -> None:
        core = self.core
        assert core is not None
        if send.start < self.memory.base.position or send.limit > self.memory.end:
            core.send_failed(send)
            return
        units = self.memory.units_from(send.start, send.limit)[: self.world.knobs.send_units]
        end = RaftPosition(units[-1].end if units else send.start)
        append = core.sent(send, end, 100 * len(units))
        if append is not None:
            self.world.send(self, send.to, append, [unit for unit in units if unit.control is None])

    def _offer(self, peer: ReplicaId) -> None:
        core = self.core
        assert core is not None
        core.offer_install(peer, core.committed)
        self.drain()

    def _fetch(self, install: Install) -> None:
        source = self.world.slot_of(node_of(install.source))
        chain = self._chain_offered[install.end.position]
        delay = self.world.chance("install").randrange(50 * self.world.knobs.delay_us)
        self.world.after(delay, self, self._adopt, install, chain, source.slot)

    def _adopt(self, install: Install, chain: int, source: int) -> None:
        core = self.core
        assert core is not None
        if (source, self.slot) in self.world.network.cut:
            core.give_up_install(install)
            return
        term = core.adopt(self.now(), install)
        if term is not None:
            self.world.judge.on_adopt(self, install.end.position, chain)
            self.memory.reset(install.end, chain, install.configuration)
            self.disk.queue.append(Adopt(install.end, chain, install.configuration, term))
        self.drain()

    def _commit(self, committed: RaftPosition) -> None:
        self.world.judge.on_commit(self, self.committed, committed)
        self.committed = committed
        keep = self.world.knobs.fold_units
        if keep and len(self.memory.units) > 2 * keep:
            position = self.memory.units[-keep - 1].end
            if position <= committed:
                assert self.core is not None
                self.core.fold(RaftPosition(position))
                self.memory.fold(position)
                self.disk.queue.append(Fold(position))

    def _acknowledge(self, visible: RaftPosition) -> None:
        core = self.core
        assert core is not None
        while self.parked and self.parked[0].end <= visible:
            operation = self.parked.popleft()
            if operation.term == core.term:
                self.world.judge.on_acknowledge(self, operation.end, operation.value)

    def _sync(self) -> None:
        disk = self.disk
        if disk.queue and not disk.syncing:
            disk.syncing = len(disk.queue)
            self.world.at(self.world.sync_ends(self), self, self.synced)
