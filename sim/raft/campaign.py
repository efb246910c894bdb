"""Many worlds, one after another, and what came of them."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct, field

from sim.raft.faults import Faults
from sim.raft.knobs import SECOND, draw_knobs
from sim.raft.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sim.raft.knobs import Knobs

ROUNDS = 3
ROUND_US = 40 * SECOND


class Finding(Struct, frozen=True):
    """A seed that broke an invariant."""

    seed: int
    knobs: Knobs
    what: str
    events: tuple[str, ...]
    """The last events before it."""
    trace: str
    """Where it was noticed."""


class Report(Struct):
    """Sums over worlds."""

    seeds: int = 0
    simulated_us: int = 0
    cpu_s: float = 0.0
    events: int = 0
    operations: int = 0
    acknowledged: int = 0
    committed: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    rare: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, world: World) -> None:
        """Count a world."""
        self.seeds += 1
        self.simulated_us += world.now
        self.events += world.events
        self.operations += world.operations
        self.acknowledged += len(world.judge.acknowledged)
        self.faults += world.faults_seen
        self.rare += world.judge.seen

    @property
    def hours(self) -> float:
        """Simulated hours."""
        return self.simulated_us / SECOND / 3600


def run_seed(seed: int, report: Report, knobs: Knobs | None = None, *, rounds: int = ROUNDS) -> Finding | None:
    """Run one seed; a finding is in the report too."""
    knobs = knobs or draw_knobs(seed)
    world = World(seed, knobs)
    begun = time.process_time()
    finding: Finding | None = None
    try:
        world.run(Faults(world), rounds, ROUND_US)
    except AssertionError as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-4:])
        events = tuple(
            f"{event.at_us / SECOND:10.6f} {event.what} {' '.join(str(part) for part in event.arguments)}"
            for event in world.recent
        )
        finding = Finding(seed, knobs, str(error) or repr(error), events, where)
        report.findings.append(finding)
    report.cpu_s += time.process_time() - begun
    report.add(world)
    return finding


def campaign(seeds: Iterable[int], stop: Callable[[Report], bool], report: Report | None = None) -> Report:
    """Run seeds until ``stop`` says so."""
    report = report or Report()
    for seed in seeds:
        if stop(report):
            break
        run_seed(seed, report)
    return report
