"""Bugs that are planted in this process, and the hunt for them: functions are others for a while, and production code
knows nothing.

Bugs that a whole broker starts with are in `planted`.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable


@contextmanager
def planted(replaced: Iterable[tuple[object, str, Any]]) -> Generator[None]:
    """Replace attributes: ``replaced`` has the owner of each, its name, and what stands there instead."""
    with ExitStack() as stack:
        for owner, attribute, replacement in replaced:
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield


def _as_it_is(setting: Any) -> Any:
    return setting


class PlantedBug(NamedTuple):
    """One bug: the functions named are others while it is planted."""

    name: str
    replaced: tuple[tuple[object, str, Any], ...]
    """Owner, attribute, and what stands there instead."""
    budget: int = 100
    """Within so much it is found: histories, or events in a simulation that counts those."""
    shape: Callable[[Any], Any] = _as_it_is
    """Makes of what a seed decides something in which the bug can be reached."""
    breaks: str = ""
    """How the finding starts."""


class Hunt(NamedTuple):
    """What came of looking for a bug."""

    finding: Any
    """What found it; None: nothing."""
    histories: int
    spent: int
    """Of the budget."""


def hunt_with(bug: PlantedBug, play: Callable[[int], tuple[Any, int]], first_seed: int = 0) -> Hunt:
    """Play histories with the bug planted until one finds it or the budget is used up. ``play`` gives what the history
    of a seed found, and what of the budget it took.
    """
    spent = 0
    with planted(bug.replaced):
        for count in itertools.count(1):
            finding, cost = play(first_seed + count - 1)
            spent += cost
            if finding is not None or spent >= bug.budget:
                return Hunt(finding, count, spent)
    raise AssertionError("a hunt ends")
