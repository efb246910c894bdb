"""The loads of ``make bench``: what is sent to a subject, which figures come out, and the budget of each.

A scenario is a function from a subject and a plan (how long) to figures by name. Content is incompressible and prepared
once. Every scenario that produces reads everything back before its figures count. Topics are deleted afterwards, so
that one row does not burden the next.
"""

import functools
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench import fetch_load, load, meter, raw, verify
from bench.subjects import Subject, seconds_to_first_ack

Figures = dict[str, float]
_names = itertools.count()


@dataclass(frozen=True)
class Plan:
    """How long to warm up and to measure, how many alternating rounds, how much to move at most in a bulk run."""

    warm_s: float
    measured_s: float
    rounds: int
    bulk_bytes: int
    rfc_s: float
    idle_s: float
    peer_warm_up_s: float
    fetch_bytes: int


FULL = Plan(0.7, 2.5, 3, 1 << 30, 12.0, 12.0, 20.0, 256 << 20)
QUICK = Plan(0.4, 1.5, 1, 512 << 20, 5.0, 5.0, 8.0, 256 << 20)


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
class Scenario:
    """A row: ``measure`` gives figures of one round; ``figures`` says how they are shown."""

    key: str
    title: str
    figures: tuple[Figure, ...]
    measure: Callable[[Subject, Plan, Callable[[str], None]], Figures]
    rounds: int | None = None


@functools.cache
def content(records: int) -> list[bytes]:
    """Batches of ``records`` values of 1 KB (1 000 bytes of value)."""
    return raw.batches(128 if records == 1 else 16, records, 1000)


def _topic(subject: Subject, partitions: int) -> str:
    name = f"bench-{next(_names)}"
    with raw.Caller(subject.bootstrap) as caller:
        caller.create_topics({name: partitions})
    return name


def _drop(subject: Subject, topic: str) -> None:
    with raw.Caller(subject.bootstrap) as caller:
        caller.delete_topics([topic])


def _produce_figures(outcome: meter.Outcome) -> Figures:
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
        "requests": outcome.requests,
    }


def produce(
    subject: Subject,
    plan: Plan,
    say: Callable[[str], None],
    *,
    connections: int,
    depth: int,
    records: int,
    partitions: int,
) -> Figures:
    """Closed loop; read back."""
    topic = _topic(subject, partitions)
    outcome, produced = load.produce_closed(
        subject.bootstrap,
        subject.pid,
        topic,
        content(records),
        connections=connections,
        depth=depth,
        partitions=partitions,
        records_a_batch=records,
        warm_s=plan.warm_s,
        measured_s=plan.measured_s,
        limit_bytes=plan.bulk_bytes,
        progress=say,
    )
    say("reading everything back")
    verify.read_back(subject.bootstrap, produced)
    _drop(subject, topic)
    return _produce_figures(outcome)


def rfc(subject: Subject, plan: Plan, say: Callable[[str], None]) -> Figures:
    """128 partitions, 1 KB, 10 240 requests a second on a schedule, 16 connections; read back."""
    topic = _topic(subject, 128)
    outcome, produced = load.produce_open(
        subject.bootstrap,
        subject.pid,
        topic,
        content(1),
        connections=16,
        partitions=128,
        rate=10_240,
        warm_s=max(2.0, plan.rfc_s / 4),
        measured_s=plan.rfc_s,
        progress=say,
    )
    say("reading everything back")
    verify.read_back(subject.bootstrap, produced)
    _drop(subject, topic)
    return _produce_figures(outcome)


def _filled(subject: Subject, plan: Plan, say: Callable[[str], None], records: int) -> verify.Produced:
    """Four partitions with ``fetch_bytes`` in them, read back once; the fetch scenarios of a subject share them."""
    if records not in subject.filled:
        outcome, produced = load.produce_closed(
            subject.bootstrap,
            subject.pid,
            _topic(subject, 4),
            content(records),
            connections=4,
            depth=4 if records > 1 else 64,
            partitions=4,
            records_a_batch=records,
            warm_s=0.0,
            measured_s=120.0,
            limit_bytes=plan.fetch_bytes,
            progress=lambda text: say(f"filling: {text}"),
        )
        _ = outcome
        verify.read_back(subject.bootstrap, produced)
        subject.filled[records] = produced
    return subject.filled[records]


def fetch(subject: Subject, plan: Plan, say: Callable[[str], None], *, max_bytes: int, records: int) -> Figures:
    """Four partitions, fetched round and round, a connection each."""
    produced = _filled(subject, plan, say, records)
    outcome = fetch_load.fetch_round(
        subject.bootstrap,
        subject.pid,
        produced,
        max_bytes=max_bytes,
        batch_bytes=len(content(records)[0]),
        warm_s=plan.warm_s,
        measured_s=plan.measured_s,
        progress=say,
    )
    return _produce_figures(outcome)


def start_empty(subject: Subject, plan: Plan, say: Callable[[str], None]) -> Figures:
    """A new process on an empty directory until one record to a new topic is acknowledged. The subject is
    not running.
    """
    _ = plan
    say("from nothing to the first ack")
    began = time.monotonic()
    subject.spawn()
    return {
        "first_ack_s": seconds_to_first_ack(subject.bootstrap, "first", began, create=True),
        "cpu_s": subject.cpu_seconds(),
    }


def thousand_partitions(subject: Subject, plan: Plan, say: Callable[[str], None]) -> Figures:
    """1000 partitions with a record each: idle cost, then start after a clean stop and after a kill. The
    subject runs.
    """
    topics = {f"wide-{i}": 100 for i in range(10)}
    say("creating 1000 partitions")
    with raw.Caller(subject.bootstrap) as caller:
        caller.create_topics(topics)
        record = raw.batch([b"one"])
        for name, count in topics.items():
            for partition in range(count):
                caller.produce_one(name, partition, record)
    say("settling")
    time.sleep(plan.idle_s / 3)
    say(f"idle for {plan.idle_s:.0f} s")
    before, began = subject.cpu_seconds(), time.monotonic()
    time.sleep(plan.idle_s)
    figures: Figures = {
        "idle_core_percent": 100 * (subject.cpu_seconds() - before) / (time.monotonic() - began),
        "idle_pss_mb": subject.pss_bytes() / 1e6,
    }
    for name, kill in (("clean", False), ("killed", True)):
        say(f"start with 1000 partitions, {name}")
        subject.end(kill=kill)
        began = time.monotonic()
        subject.spawn()
        figures[f"first_ack_{name}_s"] = seconds_to_first_ack(subject.bootstrap, "wide-0", began, create=False)
    return figures


def _cost(budget: float) -> tuple[Figure, ...]:
    return (
        Figure("cpu_us", "broker CPU, µs a request", True, 1, budget),
        Figure("per_s", "requests a second", False, 0),
        Figure("p50_ms", "p50, ms", True, 2),
        Figure("p99_ms", "p99, ms", True, 2),
    )


def _flow(budget: float | None) -> tuple[Figure, ...]:
    return (
        Figure("gb_per_cpu_s", "GB a broker-CPU-second", False, 2, budget),
        Figure("mb_per_s", "MB a second", False, 0),
        Figure("p99_ms", "p99, ms", True, 2),
    )


_small = functools.partial(produce, records=1)
_MIB = 1 << 20

LOADS: tuple[Scenario, ...] = (
    Scenario(
        "small-16x8",
        "produce 1 KB, 16 connections × 8 in flight, 16 partitions",
        _cost(14),
        functools.partial(_small, connections=16, depth=8, partitions=16),
    ),
    Scenario(
        "small-1x64",
        "produce 1 KB, 1 connection × 64 in flight, 1 partition",
        _cost(14),
        functools.partial(_small, connections=1, depth=64, partitions=1),
    ),
    Scenario(
        "small-64x1",
        "produce 1 KB, 64 connections × 1 in flight, 16 partitions",
        _cost(22),
        functools.partial(_small, connections=64, depth=1, partitions=16),
    ),
    Scenario(
        "bulk",
        "produce batches of 128 × 1 KB, 4 connections × 4, 4 partitions",
        _flow(1.2),
        functools.partial(produce, connections=4, depth=4, records=128, partitions=4),
    ),
    Scenario(
        "fetch-1m",
        "fetch 1 MiB a request, 128 KB batches",
        _flow(3.2),
        functools.partial(fetch, max_bytes=_MIB, records=128),
        rounds=2,
    ),
    Scenario(
        "fetch-128k",
        "fetch 128 KiB a request, 128 KB batches",
        _flow(2.0),
        functools.partial(fetch, max_bytes=_MIB // 8, records=128),
        rounds=2,
    ),
    Scenario(
        "fetch-1m-small",
        "fetch 1 MiB a request, 1 KB batches",
        _flow(None),
        functools.partial(fetch, max_bytes=_MIB, records=1),
        rounds=2,
    ),
    Scenario(
        "fetch-128k-small",
        "fetch 128 KiB a request, 1 KB batches",
        _flow(None),
        functools.partial(fetch, max_bytes=_MIB // 8, records=1),
        rounds=2,
    ),
    Scenario(
        "rfc",
        "produce 1 KB on a schedule, 10 240 a second, 128 partitions, 16 connections",
        (
            Figure("p50_ms", "p50, ms", True, 2),
            Figure("p99_ms", "p99, ms", True, 2, 1.5),
            Figure("p999_ms", "p99.9, ms", True, 2, 5.0),
            Figure("cores", "broker cores in use", True, 2, 0.6),
            Figure("cpu_us", "broker CPU, µs a request", True, 1),
            Figure("late_sends", "sent late by the generator", True, 0),
        ),
        rfc,
        rounds=2,
    ),
)

START_EMPTY = Scenario(
    "start",
    "start on an empty directory",
    (Figure("first_ack_s", "s to the first ack", True, 2, 0.6), Figure("cpu_s", "CPU-s until then", True, 2)),
    start_empty,
    rounds=2,
)

THOUSAND = Scenario(
    "idle-1000",
    "1000 partitions",
    (
        Figure("idle_core_percent", "idle, % of a core", True, 2, 0.5),
        Figure("idle_pss_mb", "idle, MB (PSS)", True, 0, 150),
        Figure("first_ack_clean_s", "s to the first ack after a clean stop", True, 2, 2.0),
        Figure("first_ack_killed_s", "s to the first ack after kill -9", True, 2),
    ),
    thousand_partitions,
    rounds=1,
)

ALL = (*LOADS, START_EMPTY, THOUSAND)
