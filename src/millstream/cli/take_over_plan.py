"""What a take-over moves: the partitions that no majority has without the disk, and where each of them goes.

Pure: replicas and live brokers in, new replicas out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class Place(NamedTuple):
    """One partition, with the brokers that have it; ``leader`` is -1 without one. One that moves has a ``target``, and
    ``replicas`` are the brokers of before and of then.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    leader: int = -1
    target: tuple[int, ...] = ()


def waiting(places: Iterable[Place], node: int, alive: Collection[int]) -> list[Place]:
    """The partitions that ``node`` has and the others, of which ``alive`` are, have no majority of."""
    return sorted(
        place
        for place in places
        if node in place.replicas and _others(place, node, alive) < len(place.replicas) // 2 + 1
    )


def beyond_reach(places: Iterable[Place], node: int, alive: Collection[int]) -> list[Place]:
    """Those of `waiting` that have no majority with ``node`` either."""
    return [place for place in places if _others(place, node, alive) + 1 < len(place.replicas) // 2 + 1]


def going(places: Iterable[Place], node: int) -> list[Place]:
    """The partitions that move away from ``node``. Who of the others votes in them yet, only their Raft groups know."""
    return [place for place in places if place.target and node in place.replicas and node not in place.target]


def new_replicas(place: Place, node: int, live: dict[int, int]) -> list[int]:
    """Where a partition goes: the live broker that holds the fewest replicas takes the place of ``node``. A move that
    is in progress continues, with live brokers in place of dead ones if it leads to no majority of live ones.

    Where all live brokers hold the partition, ``node`` has no successor, and dead brokers leave that would be in the
    way of a majority. ``live`` has the number of replicas of each live broker, and counts what was chosen.
    """
    target = place.target or place.replicas
    leaving = {node} if node in target else set()
    if not leaving and not _has_majority(target, live):
        leaving = {one for one in target if one not in live}
    free = {one for one in live if one not in place.replicas and one not in target}
    chosen: list[int] = []
    for one in target:
        if one not in leaving:
            chosen.append(one)
        elif free:
            taker = min(free, key=lambda each: (live[each], each))
            free.remove(taker)
            live[taker] += 1
            chosen.append(taker)
    return chosen if _has_majority(chosen, live) else [one for one in chosen if one in live]


def _has_majority(replicas: Collection[int], live: Collection[int]) -> bool:
    return sum(one in live for one in replicas) >= len(replicas) // 2 + 1


def _others(place: Place, node: int, alive: Collection[int]) -> int:
    return sum(one in alive and one != node for one in place.replicas)
