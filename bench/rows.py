"""What a row of the benchmark's table is made of: how long to measure, which figures come out, which broker it needs.

A scenario is a function from a subject and a plan to figures by name. Most run on brokers that stay up and take turns;
one with ``alone`` gets a broker of its own for each round, with the settings named there. With ``realtime`` the
generator and the peer run at real-time priority while it is measured; ours says by a setting what of it does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench import meter
from bench.subjects import Subject

Figures = dict[str, float]
LADDER = (1.0, 5.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 100.0)
"""Percentiles that are kept for the plots, as figures ``q50``, ``q99.9`` and so on, in ms."""


@dataclass(frozen=True)
class Plan:
    """How long to warm up and to measure, how many alternating rounds, how much to move at most.

    ``spark_bytes`` is of values in a topic, ``hop_runs`` counts measured runs that hop and as many that do not.
    """

    warm_s: float
    measured_s: float
    rounds: int
    bulk_bytes: int
    rfc_s: float
    idle_s: float
    peer_warm_up_s: float
    fetch_bytes: int
    cold_bytes: int
    busy_s: float
    spark_bytes: int
    spark_runs: int
    hop_runs: int


FULL = Plan(0.7, 2.5, 3, 1 << 30, 12.0, 10.0, 20.0, 256 << 20, 3 << 29, 20.0, 3 << 29, 5, 5)
QUICK = Plan(0.4, 1.5, 1, 512 << 20, 5.0, 3.0, 5.0, 256 << 20, 5 << 27, 7.0, 3 << 28, 4, 3)


@dataclass(frozen=True)
class Figure:
    """A figure of a row: its name in the results, how to show it, whether less is better, and our budget if
    it has one.
    """

    name: str
    title: str
    less_is_better: bool
    digits: int = 2
    budget: float | None = None


@dataclass(frozen=True)
class Alone:
    """A broker of its own: whether it runs when the measurement begins, whether it is warmed up, settings of ours and
    of the peer, another number of shards, no peer at all, ours with the first number of shards alone, or TLS
    1.3 with a login.
    """

    start: bool = True
    warm: bool = False
    ours: Mapping[str, str] = field(default_factory=dict[str, str])
    peer: Mapping[str, str] = field(default_factory=dict[str, str])
    shards: int | None = None
    peer_too: bool = True
    one_of_ours: bool = False
    secure: bool = False


Say = Callable[[str], None]


@dataclass(frozen=True)
class Scenario:
    """A row: ``measure`` gives figures of one round; ``figures`` says how they are shown."""

    key: str
    title: str
    figures: tuple[Figure, ...]
    measure: Callable[[Subject, Plan, Say], Figures]
    rounds: int | None = None
    alone: Alone | None = None
    realtime: bool = False


def of_produce(outcome: meter.Outcome) -> Figures:
    """The figures that every load has."""
    return {
        "cpu_us": outcome.cpu_us,
        "gb_per_cpu_s": outcome.gb_per_cpu_s,
        "per_s": outcome.requests / outcome.seconds,
        "mb_per_s": outcome.bytes / 1e6 / outcome.seconds,
        "p50_ms": outcome.percentile_us(50) / 1000,
        "p99_ms": outcome.percentile_us(99) / 1000,
        "p999_ms": outcome.percentile_us(99.9) / 1000,
        "cores": outcome.broker_cpu_s / outcome.seconds,
        "client_cores": outcome.client_cpu_s / outcome.seconds,
        "late_sends": outcome.late_sends,
        "stolen_ms_per_s": 1000 * outcome.stolen_s / outcome.seconds,
        "requests": outcome.requests,
    }


def ladder(outcome: meter.Outcome) -> Figures:
    """Percentiles for the plots."""
    return {f"q{percent:g}": outcome.percentile_us(percent) / 1000 for percent in LADDER}
