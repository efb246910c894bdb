"""The history of a seed: a world with its faults, in rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.engine.histories import attempt
from sim.engine.timeline import SECOND
from sim.raft.faults import Faults
from sim.raft.knobs import draw_knobs
from sim.raft.world import World

if TYPE_CHECKING:
    from sim.engine.histories import Counts, Finding
    from sim.raft.knobs import Knobs

ROUNDS = 3
ROUND_US = 40 * SECOND


def play(seed: int, counts: Counts, knobs: Knobs | None = None) -> Finding | None:
    """Play the history of a seed; a finding is in ``counts``, too."""
    knobs = knobs or draw_knobs(seed)
    world = World(seed, knobs)
    faults = Faults(world)
    finding = attempt(seed, counts, lambda: world.run(faults, ROUNDS, ROUND_US), (AssertionError,), knobs, world.told)
    counts.simulated_us += world.now
    counts.steps += world.events
    counts.operations += world.operations
    counts.trace = world.trace
    counts.faults += world.faults_seen
    counts.seen += world.judge.seen
    counts.seen["acknowledgement"] += len(world.judge.acknowledged)
    return finding
