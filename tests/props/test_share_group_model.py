"""Share groups under everything at once, from one seed each (``share_group_world``)."""

from collections import Counter

import pytest
from share_group_world import World

FOUND = (1006, 1079, 1130, 1317, 1469)
"""Seeds that found a fault, when there was one: planted, or in earnest."""


@pytest.mark.parametrize("seed", [*range(40), *FOUND])
def test_share_groups_hold_what_they_promise(seed: int) -> None:
    world = World(seed)
    for _ in range(1_200):
        world.act()
    world.rest()
    world.check_at_rest()


def test_the_worlds_see_what_they_are_made_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100, 106):
        world = World(seed)
        for _ in range(1_200):
            world.act()
        seen += world.seen
    assert all(seen[what] for what in ("assigned", "altered", "forgotten", "deleted", "crashes")), seen
