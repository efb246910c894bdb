"""The plain loads: produce as fast as answers come, fetch, produce on a schedule, and that with consumer groups.

Content is incompressible and prepared once. Every load that produces reads everything back before its figures count.
Topics are deleted afterwards, so that one row does not burden the next.
"""

import contextlib
import functools
import itertools
import resource
from collections.abc import Generator, Mapping

from bench import bare, fetch_load, load, raw, schedule, stalls, verify
from bench.rows import LADDER, Alone, Figures, Plan, Say, ladder, of_produce
from bench.schedule import RFC
from bench.subjects import Subject
from bench.tail_load import Tail

REALTIME = Alone(warm=True, ours={"shards.realtime": "true", "wal.pacing.us": "100"}, one_of_ours=True)
"""Settings of an operator who prefers latency to CPU."""

SECURE = Alone(warm=True, secure=True, one_of_ours=True)
"""TLS 1.3, a login and rights, on both."""

_names = itertools.count()


@functools.cache
def content(records: int) -> list[bytes]:
    """Batches of ``records`` values of 1 KB (1 000 bytes of value)."""
    return raw.batches(128 if records == 1 else 16, records, 1000)


def new_topic(subject: Subject, partitions: int, configs: Mapping[str, str] | None = None) -> str:
    """Creates one; its name."""
    name = f"bench-{next(_names)}"
    with raw.Caller(subject.bootstrap) as caller:
        caller.create_topics({name: partitions}, dict(configs or {}))
    return name


@contextlib.contextmanager
def topic(subject: Subject, partitions: int, configs: Mapping[str, str] | None = None) -> Generator[str]:
    """One that is deleted when its figures are there."""
    name = new_topic(subject, partitions, configs)
    yield name
    with raw.Caller(subject.bootstrap) as caller:
        caller.delete_topics([name])


def allow_descriptors(count: int) -> None:
    """Lets this process have so many open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def produce(
    subject: Subject, plan: Plan, say: Say, *, connections: int, depth: int, records: int, partitions: int
) -> Figures:
    """Closed loop; read back."""
    allow_descriptors(connections + 200)
    with topic(subject, partitions) as name:
        outcome, produced = load.produce_closed(
            subject.bootstrap,
            subject.pid,
            name,
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
    return of_produce(outcome)


def rfc(subject: Subject, plan: Plan, say: Say) -> Figures:
    """128 partitions, 1 KB, 10 240 requests a second on a schedule, 16 connections; read back. Then a bare loop has it,
    in half the time.
    """
    with topic(subject, RFC.partitions) as name, stalls.watched(subject) as stalled:
        acknowledged = load.fresh(RFC.partitions)
        outcome = schedule.produce_open(
            subject.bootstrap,
            subject.pid,
            name,
            content(1),
            RFC,
            warm_s=max(2.0, plan.rfc_s / 4),
            measured_s=plan.rfc_s,
            acknowledged=acknowledged,
            progress=say,
        )
        figures = of_produce(outcome) | ladder(outcome) | stalled()
        say("reading everything back")
        verify.read_back(
            subject.bootstrap, verify.Produced(name, acknowledged, 1, frozenset(load.checksums(content(1))))
        )
    if not subject.is_peer:
        say("a bare loop in its place")
        figures |= bare.measure(RFC, content(1), warm_s=2.0, measured_s=plan.rfc_s / 2)
    return figures


def tail(subject: Subject, plan: Plan, say: Say, *, groups: int) -> Figures:
    """The scheduled load with groups that read its tail. They read and check everything, so nothing is read back."""
    warm_s = max(2.0, plan.rfc_s / 4)
    planned, warm = int(RFC.rate * (warm_s + plan.rfc_s)), int(RFC.rate * warm_s)
    with (
        topic(subject, RFC.partitions) as name,
        Tail(
            subject.bootstrap,
            name,
            RFC,
            groups=groups,
            checksums=load.checksums(content(1)),
            batch_bytes=len(content(1)[0]),
            planned=planned,
            count_from=warm,
        ) as readers,
    ):
        acknowledged = load.fresh(RFC.partitions)
        outcome = schedule.produce_open(
            subject.bootstrap,
            subject.pid,
            name,
            content(1),
            RFC,
            warm_s=warm_s,
            measured_s=plan.rfc_s,
            acknowledged=acknowledged,
            begun=readers.tell,
            progress=say,
        )
        say("waiting for the groups")
        read = readers.result()
        verify.check_dense(verify.Produced(name, acknowledged, 1, frozenset()))
    figures = of_produce(outcome)
    figures |= {f"end_p{name}_ms": read[f"q{q}"] for name, q in (("50", "50"), ("99", "99"), ("999", "99.9"))}
    figures |= {f"q{percent:g}": read[f"q{percent:g}"] for percent in LADDER}
    figures["delivered_us"] = 1e6 * outcome.broker_cpu_s / (outcome.requests * groups)
    figures["fetches_per_s"] = read["fetches"] / (warm_s + plan.rfc_s)
    return figures


def filled(subject: Subject, size: int, say: Say, records: int) -> verify.Produced:
    """Four partitions with ``size`` bytes in them, read back once; the scenarios of a subject share them."""
    if records not in subject.filled:
        _, produced = load.produce_closed(
            subject.bootstrap,
            subject.pid,
            new_topic(subject, 4),
            content(records),
            connections=4,
            depth=4 if records > 1 else 64,
            partitions=4,
            records_a_batch=records,
            warm_s=0.0,
            measured_s=120.0,
            limit_bytes=size,
            progress=lambda text: say(f"filling: {text}"),
        )
        verify.read_back(subject.bootstrap, produced)
        subject.filled[records] = produced
    return subject.filled[records]


def fetch(subject: Subject, plan: Plan, say: Say, *, max_bytes: int, records: int) -> Figures:
    """Four partitions, fetched round and round, a connection each."""
    produced = filled(subject, plan.fetch_bytes, say, records)
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
    return of_produce(outcome)
