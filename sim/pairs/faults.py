"""What may happen to one broker of three, and to the replicas of a partition.

Each starts with all brokers up and connected, and lasts until the next of these, or until rest: so the operation
after it meets a cluster that is short of a broker, or one that has just come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from millstream.core.controller import requests
from sim.engine.timeline import SECOND
from sim.pairs.cuts import cut_uncleanly
from sim.pairs.kinds import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.pairs.member import Member
    from sim.pairs.several import Several
    from sim.pairs.world import World

_PAUSE_US: Final = 20 * SECOND


def _healed(world: World) -> Several:
    """All brokers are up, and batches are on their way to one."""
    world.heal()
    world.send()
    return cast("Several", world)


def _some(world: Several, *, leads: bool) -> Member:
    """The broker that leads the topic, or another one."""
    leader = world.home(TOPIC, 0)[0]
    return leader if leads else world.chance.choice([one for one in world.members if one is not leader])


def _kill(*, leads: bool) -> Callable[[World], None]:
    def kill(world: World) -> None:
        several = _healed(world)
        _some(several, leads=leads).crash(torn=several.chance.random() < 0.5)

    return kill


def _kill_and_start(world: World) -> None:
    several = _healed(world)
    one = several.chance.choice(several.members)
    one.crash(torn=several.chance.random() < 0.5)
    several.wait(several.chance.choice((0, SECOND, 10 * SECOND)))
    one.start()


def _stop_and_start(world: World) -> None:
    several = _healed(world)
    one = several.chance.choice(several.members)
    several.stop_one(one)
    several.wait(several.chance.choice((0, 10 * SECOND)))
    one.start()


def _pause(world: World) -> None:
    several = _healed(world)
    cluster = several.cluster
    cluster.paused[_some(several, leads=True)] = cluster.now + _PAUSE_US


def _cut_off(world: World) -> None:
    several = _healed(world)
    several.isolate(_some(several, leads=several.chance.random() < 0.7))


def _hand_over(world: World) -> None:
    several = _healed(world)
    leader, partition = several.home(TOPIC, 0)
    answers: list[Any] = []
    target = several.chance.choice([one.node_id for one in several.members if one is not leader])
    leader.transfers.move(partition.raft_group, target, answers.append)
    several.until(lambda: bool(answers), "a handover is not answered")


def _move(world: World) -> None:
    several = _healed(world)
    nodes = [one.node_id for one in several.members]
    target = tuple(several.chance.sample(nodes, several.chance.randint(1, len(nodes))))
    several.decide(requests.ReassignPartitions((requests.ReassignPartition(several.kind.name, 0, target),)))


def _fail(*, leads: bool) -> Callable[[World], None]:
    def fail(world: World) -> None:
        """A verb of one replica raises; it is repaired by the next operation, or by rest."""
        several = _healed(world)
        several.fail(_some(several, leads=leads))

    return fail


def _cut_uncleanly(world: World) -> None:
    cut_uncleanly(_healed(world))


FAULTS: Final[dict[str, Callable[[World], None]]] = {
    "kill the leader": _kill(leads=True),
    "kill a follower": _kill(leads=False),
    "kill and start one": _kill_and_start,
    "stop and start one": _stop_and_start,
    "pause the leader": _pause,
    "cut one off": _cut_off,
    "hand the leadership over": _hand_over,
    "move replicas": _move,
    "fail the leader": _fail(leads=True),
    "fail a follower": _fail(leads=False),
    "cut uncleanly": _cut_uncleanly,
}
