"""What an unsafe recovery comes to: which groups have lost their majority, who continues each, what is lost.

::

    what each survivor knows of its groups (`Survivor`) ──plan_recovery(survivors, lost)──► `RecoveryPlan`

The replica with the newest log continues: the highest term of the last entry, then the longest log. It has everything
that any survivor knows to be committed. A replica that has lost a part of its own log is not taken.

**What may be lost.** An entry is committed when a majority of the voters has it on disk. If fewer are lost than that
majority, a survivor has every committed entry, and nothing that was acknowledged is lost (two of four). Otherwise what
was acknowledged after the end of the survivor's log may be lost, and its amount is unknown.

A plan for brokers that were declared lost before completes what an interrupted recovery has left. Otherwise it is
refused, in one sentence, while a majority of every group is alive, and when brokers are named that cannot be what they
are named for: a lost one that a survivor is connected with, a survivor that belongs to another cluster, a registered
one that is neither.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

CONTROLLER_GROUP: Final = 0


class GroupFacts(msgspec.Struct, frozen=True):
    """One group as its replica here knows it. Brokers are node ids; ends are exclusive."""

    group: int
    topic: str
    """Empty for the controller's log."""
    partition: int
    replicas: tuple[int, ...]
    """Brokers that are to hold it; empty for the controller's log."""
    voters: tuple[int, ...]
    outgoing: tuple[int, ...]
    term: int
    leads: bool
    leader: int
    """-1 while none is known."""
    last_term: int
    end_position: int
    """With ``last_term`` it says how new the log is."""
    end_offset: int
    committed_offset: int
    damaged: bool


class KnownBroker(msgspec.Struct, frozen=True):
    """A broker in the registry of a survivor."""

    id: int
    alive: bool
    lost: bool = False
    """It was declared lost before."""


class Survivor(msgspec.Struct, frozen=True):
    """What a broker answers that is asked before a recovery."""

    cluster_id: str
    node_id: int
    controller: int | None
    brokers: tuple[KnownBroker, ...]
    connected: tuple[int, ...]
    """Brokers with which it has a connection now."""
    groups: tuple[GroupFacts, ...]


class GroupPlan(msgspec.Struct, frozen=True):
    """One group without a majority."""

    group: int
    topic: str
    partition: int
    voters: tuple[int, ...]
    survivor: int | None
    """The broker that continues it; None if no survivor holds it, and everything in it is lost."""
    end_offset: int
    """End of what is kept."""
    may_lose_acknowledged: bool


class RecoveryPlan(msgspec.Struct, frozen=True):
    """What is to be done."""

    controller: GroupPlan | None
    """Set if the controller's log itself has lost its majority."""
    partitions: tuple[GroupPlan, ...]
    undeclared: tuple[int, ...]
    """Lost brokers whose disks are not retired yet."""


def plan_recovery(survivors: Sequence[Survivor], lost: Collection[int]) -> RecoveryPlan:
    """The plan. Raises Rejected if there is nothing to recover, or if what is named cannot be."""
    _check(survivors, lost)
    by_group: dict[int, list[tuple[int, GroupFacts]]] = {}
    for survivor in survivors:
        for facts in survivor.groups:
            by_group.setdefault(facts.group, []).append((survivor.node_id, facts))
    plans = [plan for _, known in sorted(by_group.items()) if (plan := _plan(known, lost)) is not None]
    controller = next((plan for plan in plans if plan.group == CONTROLLER_GROUP), None)
    declared = {broker.id for survivor in survivors for broker in survivor.brokers if broker.lost}
    partitions = tuple(plan for plan in plans if plan.group != CONTROLLER_GROUP)
    if controller is None and not partitions and not declared & set(lost):
        raise Rejected(_NOTHING, ErrorCode.INVALID_REQUEST)
    undeclared = tuple(sorted(set(lost) - declared))
    return RecoveryPlan(controller, partitions, undeclared)


_NOTHING: Final = (
    "a majority of every group is alive, so nothing has to be recovered: start the brokers that are down, replace them "
    "('millstream start --replace'), or let them go ('millstream cluster decommission ID')"
)


def _check(survivors: Sequence[Survivor], lost: Collection[int]) -> None:
    """Raise Rejected unless the survivors and the lost brokers are those of one cluster, and can be."""
    clusters = sorted({survivor.cluster_id for survivor in survivors})
    if len(clusters) != 1:
        raise Rejected(f"the survivors belong to different clusters: {', '.join(clusters)}", ErrorCode.INVALID_REQUEST)
    nodes = [survivor.node_id for survivor in survivors]
    if len(set(nodes)) != len(nodes):
        raise Rejected("a survivor is named twice", ErrorCode.INVALID_REQUEST)
    both = sorted(set(nodes) & set(lost))
    if both:
        raise Rejected(f"broker {both[0]} answers, so it is not lost", ErrorCode.INVALID_REQUEST)
    registered = {broker.id for survivor in survivors for broker in survivor.brokers}
    unknown = sorted(set(lost) - registered)
    if unknown and registered:
        raise Rejected(f"no broker {unknown[0]} is registered in this cluster", ErrorCode.INVALID_REQUEST)
    neither = sorted(registered - set(nodes) - set(lost))
    if neither:
        raise Rejected(
            f"broker {neither[0]} is named neither as a survivor nor as lost: every broker of the cluster has to be "
            "one of both",
            ErrorCode.INVALID_REQUEST,
        )
    for survivor in survivors:
        alive = sorted(set(survivor.connected) & set(lost))
        if alive:
            raise Rejected(
                f"broker {survivor.node_id} is connected with broker {alive[0]}, which is not lost: stop it "
                "first, if it is to be given up",
                ErrorCode.INVALID_REQUEST,
            )


def _plan(known: Sequence[tuple[int, GroupFacts]], lost: Collection[int]) -> GroupPlan | None:
    """The plan for one group of which survivors hold replicas; None if it needs no recovery."""
    if any(facts.voters and not lacks_majority(facts, lost) and facts.leads for _, facts in known):
        return None  # it was recovered before, and others do not know of it yet
    best = max(
        (each for each in known if not each[1].damaged and each[1].voters),
        key=lambda each: (each[1].last_term, each[1].end_position, -each[0]),
        default=None,
    )
    facts = best[1] if best is not None else known[0][1]
    if not lacks_majority(facts, lost):
        return None
    return GroupPlan(
        facts.group,
        facts.topic,
        facts.partition,
        facts.voters,
        best[0] if best is not None else None,
        facts.end_offset if best is not None else 0,
        any(_could_commit_alone(voters, lost) for voters in (facts.voters, facts.outgoing) if voters),
    )


def lacks_majority(facts: GroupFacts, lost: Collection[int]) -> bool:
    """Whether the group can elect no leader without the lost brokers."""
    return any(
        sum(voter in lost for voter in voters) > len(voters) - (len(voters) // 2 + 1)
        for voters in (facts.voters, facts.outgoing)
        if voters
    )


def _could_commit_alone(voters: tuple[int, ...], lost: Collection[int]) -> bool:
    return sum(voter in lost for voter in voters) >= len(voters) // 2 + 1
