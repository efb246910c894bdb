"""A planted bug, and the histories that look for it: the same for each world of brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sim.brokers.history import Counts
from sim.engine.planting import planted

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.brokers.history import Finding
    from sim.brokers.settings import Setting


class PlantedBug(NamedTuple):
    """One bug: the functions named are others while it is planted."""

    name: str
    replaced: tuple[tuple[object, str, Any], ...]
    """Owner, attribute, and what stands there instead."""
    histories: int
    """Within so many it is found."""
    shape: Callable[[Setting], Setting] = lambda setting: setting
    """Makes a setting one in which the bug can be reached."""


class Hunt(NamedTuple):
    """What came of looking for a bug."""

    bug: PlantedBug
    finding: Finding | None
    counts: Counts


def hunt_in(
    play: Callable[[int, Counts, Setting], Finding | None],
    draw: Callable[[int], Setting],
    bug: PlantedBug,
    first_seed: int,
) -> Hunt:
    """Play histories of a world with the bug planted until one finds it or the budget is used up."""
    counts = Counts()
    with planted(bug.replaced):
        for seed in range(first_seed, first_seed + bug.histories):
            finding = play(seed, counts, bug.shape(draw(seed)))
            if finding is not None:
                return Hunt(bug, finding, counts)
    return Hunt(bug, None, counts)
