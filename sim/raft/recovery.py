"""Unsafe recovery of a simulated group: a majority of its voters is lost forever, and one survivor leads alone.

::

    a round of faults ends ──► some machines stop ──► no leader ──► the plan of the command line: who continues?
      ──► those machines come back as new members with empty disks ──► `lead_alone` ──► the members are steered back

The plan is the production's (`core.controller.recovery_plan`), and so are the conditions: if no majority is lost, or
each survivor has lost a part of its log, the machines come back with their disks, and nothing was unsafe.

What only the lost machines had is lost, and the judge knows that: everything that a survivor knows to be committed is
not (`Judge.on_alone`), and from then on every invariant holds as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.controller.recovery_plan import GroupFacts, KnownBroker, Survivor, plan_recovery
from millstream.core.raft.ready import Role
from millstream.errors import Rejected
from millstream.model.replication import NO_REPLICA, node_of

if TYPE_CHECKING:
    from millstream.model.replication import ReplicaId
    from sim.raft.replica import SimReplica
    from sim.raft.world import World

_QUIET_TIMEOUTS = 12
"""Election timeouts until messages on their way have arrived and no replica takes a lost one for the leader."""
_DONE_TIMEOUTS = 60
"""… within which the group has a leader, and its members are those of before."""
_GROUP = 1


def recover(world: World) -> None:
    """Lose some machines, and continue without them if they were a majority."""
    chance = world.chance("recovery")
    slots = world.slots
    if len(slots) < 2 or any(slot.excused or slot.damaged_until is not None for slot in slots):
        return
    survivors = chance.sample(slots, chance.randint(1, max(1, len(slots) // 2)))
    lost = [slot for slot in slots if slot not in survivors]
    world.network.heal()
    for slot in slots:
        slot.paused_until = slot.disk.stalled_until = 0
        if slot.core is not None and (slot in lost or slot.core.role is Role.LEADER):
            slot.crash()
        slot.life += slot in lost  # none of them comes back by itself
    for slot in survivors:
        if slot.core is None:
            slot.start()
    timeout_us = world.knobs.options.election_timeout_us
    world.run_until(world.now + _QUIET_TIMEOUTS * timeout_us + 50 * world.knobs.delay_us)
    best = _choose(survivors, lost)
    if best is None:
        return
    world.faults_seen["majority lost"] += 1
    world.record("majority lost", [slot.identity for slot in lost])
    for slot in lost:
        slot.replace()
        slot.start()
    world.judge.on_alone(best, survivors)
    _lead_alone(world, best)
    limit_us = _DONE_TIMEOUTS * timeout_us + 2 * world.backlog_us()
    members = [slot.identity for slot in slots[: world.knobs.nodes]]
    members.sort(key=lambda identity: identity != best.identity)
    if best.identity not in members:
        members[:0] = [best.identity]
    end_us = world.now + limit_us
    while not _steer(world, tuple(members)):
        if world.now > end_us:
            world.judge.fail("G5", f"the members are not {members} {limit_us} us after an unsafe recovery")
        world.run_until(world.now + timeout_us // 5)


def _choose(survivors: list[SimReplica], lost: list[SimReplica]) -> SimReplica | None:
    """Who is to lead alone; None if the order would be refused."""
    nodes = [slot.slot for slot in lost]
    brokers = tuple(KnownBroker(slot.slot, alive=slot not in lost) for slot in (*survivors, *lost))
    answers = [Survivor("one", slot.slot, None, brokers, (), (_facts(slot),)) for slot in survivors]
    try:
        plan = plan_recovery(answers, nodes)
    except Rejected:
        return None
    chosen = plan.partitions[0].survivor if plan.partitions else None
    best = next((slot for slot in survivors if slot.slot == chosen), None)
    if best is None or best.core is None or best.core.leads or best.core.leader != NO_REPLICA:
        return None
    # A survivor that was no voter holds what the voters held, or less: the command takes voters.
    return best if best.identity in best.core.replica.log.configuration.voters else None


def _facts(slot: SimReplica) -> GroupFacts:
    core = slot.core
    assert core is not None
    configuration, last = core.replica.log.configuration, core.replica.log.last
    return GroupFacts(
        _GROUP,
        "t",
        0,
        (),
        tuple(map(node_of, configuration.voters)),
        tuple(map(node_of, configuration.outgoing)),
        core.term,
        core.leads,
        -1 if core.leader == NO_REPLICA else node_of(core.leader),
        last.term,
        last.position,
        last.position,
        core.committed,
        core.is_damaged,
    )


def _lead_alone(world: World, best: SimReplica) -> None:
    core = best.core
    assert core is not None
    world.record("leads alone", best.identity)
    core.lead_alone(best.now())
    best.drain()


def _steer(world: World, members: tuple[ReplicaId, ...]) -> bool:
    leader = world.leader()
    if leader is None or leader.core is None:
        return False
    done = leader.core.steer(leader.now(), members, ())
    leader.drain()
    return done
