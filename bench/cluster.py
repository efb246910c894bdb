"""``make bench-cluster``: three brokers with three replicas of everything, beside three Apache Kafka brokers.

    python -m bench.cluster [--quick] [--no-peer] [--only ROW,…] [--rate N] [--write-docs]

Both clusters are up, and take turns, round after round. Every request asks for ``acks=all`` with two replicas in sync.
Ours has synced a majority's disks before it answers; Kafka, at its defaults, syncs nowhere: that difference is meant.

=========  =========================================================================================================
cost       broker CPU a request of 1 KB, all brokers together, on a schedule of ``--rate`` requests a second
rate       the highest rate on a schedule at which p99 stays at 50 ms or below, in steps of a quarter
bulk       GB of record batches a broker-CPU-second, batches of 128 × 1 KB as fast as answers come
fail-over  seconds from kill -9 of the broker that leads a partition to the next acknowledgement in it
=========  =========================================================================================================

What is acknowledged must be dense, and is read back from the leaders, before a figure counts. The highest rate is
sought from the bottom in the first round only, and from `BACK` steps below what was held then in the others. No row
starts another round after ``--minutes``: the table says how many rounds each figure is of, and how busy the machine
was. Exit code 0: everything was measured and verified. Figures go to ``.cache/bench/cluster.json`` and ``cluster.md``,
and with ``--write-docs`` to ``docs/performance.md``.
"""

import argparse
import contextlib
import itertools
import json
import os
import select
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench import load, raw, report, schedule, verify
from bench.meter import Outcome, quiet_gc
from bench.peers.kafka_cluster import KafkaCluster, kafka_cluster
from bench.plain import content
from bench.raw import UnexpectedAnswer
from bench.schedule import Schedule
from millstream.testing.clusters import Cluster, cluster

OUTPUT = Path(".cache/bench")
OURS, PEER = "millstream × 3", "kafka × 3"
PARTITIONS = 48
CONNECTIONS = 12
P99_MS_MAX = 50.0
STEP = 1.25
FIRST_RATE = 200.0
BACK = 3
RATE_MAX = 60_000.0
FAIL_OVER_LIMIT_S = 60.0
NOT_LEADER_ERRORS = (3, 5, 6, 7, 19, 20)
"""Unknown topic, no leader, not the leader, timed out, too few in sync: all pass when there is a new leader."""

ATTEMPTS = 4
SETTLED_S = 3.0
"""Both clusters move leaders to the preferred replicas after a topic is created or a broker returns."""
DOCS = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- cluster: written by make bench-cluster -->", "<!-- end of cluster -->"
_names = itertools.count()
_held: dict[str, float] = {}
"""The highest rate of each cluster in the last round."""
_T = TypeVar("_T")


class Brokers(Protocol):
    """A cluster of ours or of the peer, by node id."""

    @property
    def bootstrap(self) -> str: ...

    def kill(self, node: int) -> None: ...

    def restart(self, node: int) -> None: ...


@dataclass(frozen=True)
class Row:
    """A figure: its title, whether less is better, the ratio to the peer that is the goal (and the limit of ours)."""

    key: str
    title: str
    less_is_better: bool
    digits: int
    goal: float | None
    limit: float | None = None


ROWS = (
    Row("cost", "broker CPU, µs a request", less_is_better=True, digits=1, goal=2.2),
    Row("rate", "highest rate with p99 ≤ 50 ms, requests a second", less_is_better=False, digits=0, goal=3.0),
    Row("bulk", "GB a broker-CPU-second", less_is_better=False, digits=3, goal=3.0),
    Row("fail-over", "kill -9 of a leader: s to the next ack", less_is_better=True, digits=2, goal=None, limit=3.0),
)


@dataclass(frozen=True)
class Plan:
    """Lengths in seconds; ``rounds`` alternate between the clusters."""

    warm_s: float
    measured_s: float
    rounds: int
    bulk_bytes: int
    step_s: float


FULL = Plan(3.0, 12.0, 3, 1 << 30, 6.0)
QUICK = Plan(1.5, 4.0, 1, 64 << 20, 2.5)


class Subject:
    """A running cluster with what the loads need of it."""

    def __init__(self, name: str, brokers: "Cluster | KafkaCluster") -> None:
        self.name = name
        self.brokers = brokers
        self.admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})

    @property
    def pids(self) -> list[int]:
        """Root processes of all brokers."""
        return [broker.pid for broker in self.brokers.brokers.values()]

    def new_topic(self, partitions: int) -> str:
        """Creates one with three replicas; returns its name when all of them are in sync."""
        name = f"bench-{next(_names)}"
        config = {"min.insync.replicas": "2"}
        made = self.admin.create_topics([NewTopic(name, partitions, 3, config=config)], operation_timeout=60)
        made[name].result()
        self.wait_in_sync(name)
        return name

    def wait_in_sync(self, topic: str, limit_s: float = 90.0) -> None:
        """Returns when every partition has a leader and three replicas in sync."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            found = self.admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
            if found and all(part.leader > 0 and len(part.isrs) == 3 for part in found):
                return
            time.sleep(0.1)
        raise UnexpectedAnswer(f"{self.name}: replicas of {topic} are not in sync after {limit_s:.0f} s")

    def leaders(self, topic: str) -> dict[int, str]:
        """HOST:PORT of each partition's leader, when none has moved for ``SETTLED_S``."""
        deadline = time.monotonic() + 90
        before, since = self._leaders(topic), time.monotonic()
        while time.monotonic() < deadline:
            time.sleep(0.2)
            now = self._leaders(topic)
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > SETTLED_S:
                return now
        raise UnexpectedAnswer(f"{self.name}: leaders of {topic} still move after 90 s")

    def _leaders(self, topic: str) -> dict[int, str]:
        """HOST:PORT of each partition's leader, once the broker that is asked knows them all."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            about = self.admin.list_topics(topic, timeout=10)
            where = {node: f"{broker.host}:{broker.port}" for node, broker in about.brokers.items()}
            found = about.topics[topic].partitions
            if found and all(part.leader in where for part in found.values()):
                return {number: where[part.leader] for number, part in found.items()}
            time.sleep(0.1)
        raise UnexpectedAnswer(f"{self.name}: {topic} has partitions without a leader after 60 s")

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result()


def producers_of(
    leaders: Mapping[int, str], connections: int, topic: str, batches: list[bytes], acknowledged: Mapping[int, Any]
) -> Callable[[select.epoll], list[load.Producer]]:
    """Opens connections to the leaders in turn; the partitions of a leader are shared among its connections."""
    led: dict[str, list[int]] = defaultdict(list)
    for partition, where in sorted(leaders.items()):
        led[where].append(partition)
    each = max(1, connections // len(led))

    def opened(epoll: select.epoll) -> list[load.Producer]:
        return [
            load.Producer(where, epoll, topic, load.spread_requests(topic, batches, own), acknowledged)
            for number in range(each)
            for where, partitions in led.items()
            if (own := partitions[number::each])
        ]

    return opened


def read_back(subject: Subject, produced: verify.Produced) -> None:
    """Reads back everything that was acknowledged, from the leaders."""
    leaders = subject.leaders(produced.topic)
    for where in {*leaders.values()}:
        own = {number: bases for number, bases in produced.acknowledged.items() if leaders[number] == where}
        verify.read_back(where, verify.Produced(produced.topic, own, produced.records_a_batch, produced.checksums))


def scheduled(subject: Subject, rate: float, warm_s: float, measured_s: float) -> Outcome:
    """Requests of 1 KB on a schedule, read back. Measured anew, in another topic, when a leader moved meanwhile."""
    return _unless_moved(lambda: _scheduled(subject, rate, warm_s, measured_s))


def _unless_moved(measured: Callable[[], _T]) -> _T:
    for _ in range(ATTEMPTS - 1):
        try:
            return measured()
        except raw.ErrorAnswer as error:
            if error.code not in NOT_LEADER_ERRORS:
                raise
    return measured()


def _scheduled(subject: Subject, rate: float, warm_s: float, measured_s: float) -> Outcome:
    topic = subject.new_topic(PARTITIONS)
    acknowledged = load.fresh(PARTITIONS)
    opened = producers_of(subject.leaders(topic), CONNECTIONS, topic, content(1), acknowledged)
    outcome = schedule.produce_open(
        "",
        subject.pids,
        topic,
        content(1),
        Schedule(rate, PARTITIONS, CONNECTIONS),
        warm_s=warm_s,
        measured_s=measured_s,
        acknowledged=acknowledged,
        opened=opened,
    )
    read_back(subject, verify.Produced(topic, acknowledged, 1, frozenset(load.checksums(content(1)))))
    subject.delete(topic)
    return outcome


def cost(subject: Subject, plan: Plan, rate: float) -> float:
    return scheduled(subject, rate, plan.warm_s, plan.measured_s).cpu_us


def highest_rate(subject: Subject, plan: Plan, _: float) -> float:
    """The last rate that was held; a rate that is missed once is tried once more."""
    held, rate = 0.0, max(FIRST_RATE, _held.get(subject.name, 0.0) / STEP**BACK)
    while rate <= RATE_MAX:
        if not any(_holds(subject, rate, plan) for _ in range(2)):
            break
        held, rate = rate, rate * STEP
    _held[subject.name] = held
    return held


def _holds(subject: Subject, rate: float, plan: Plan) -> bool:
    try:
        outcome = scheduled(subject, rate, plan.warm_s, plan.step_s)
    except UnexpectedAnswer:
        return False
    return outcome.percentile_us(99) <= 1000 * P99_MS_MAX


def bulk(subject: Subject, plan: Plan, _: float) -> float:
    return _unless_moved(lambda: _bulk(subject, plan))


def _bulk(subject: Subject, plan: Plan) -> float:
    topic = subject.new_topic(12)
    acknowledged = load.fresh(12)
    opened = producers_of(subject.leaders(topic), 6, topic, content(128), acknowledged)
    with select.epoll() as epoll, quiet_gc():
        outcome = load.keep_in_flight(
            epoll,
            opened(epoll),
            subject.pids,
            depth=2,
            batch_bytes=len(content(128)[0]),
            warm_s=plan.warm_s,
            measured_s=2 * plan.measured_s,
            limit_bytes=plan.bulk_bytes,
        )
    read_back(subject, verify.Produced(topic, acknowledged, 128, frozenset(load.checksums(content(128)))))
    subject.delete(topic)
    return outcome.gb_per_cpu_s


def fail_over(subject: Subject, plan: Plan, _: float) -> float:
    """Kills the broker that leads partition 0, and asks the others for an acknowledgement until one gives it."""
    _ = plan
    topic = subject.new_topic(1)
    leader = subject.leaders(topic)[0]
    with raw.Caller(leader) as caller:
        before = [caller.produce_one(topic, 0, content(1)[0]) for _ in range(20)]
    (victim,) = (node for node, broker in subject.brokers.brokers.items() if broker.bootstrap == leader)
    others = [broker.bootstrap for node, broker in subject.brokers.brokers.items() if node != victim]
    began = time.perf_counter()
    subject.brokers.kill(victim)
    offset = _next_ack(others, topic, began + FAIL_OVER_LIMIT_S)
    seconds = time.perf_counter() - began
    subject.brokers.restart(victim)
    if offset != before[-1] + 1:
        raise UnexpectedAnswer(f"{subject.name}: offset {offset} after a fail-over, {before[-1] + 1} is next")
    subject.wait_in_sync(topic)
    subject.delete(topic)
    return seconds


def _next_ack(brokers: Sequence[str], topic: str, deadline: float) -> int:
    """The offset of a batch that was sent again and again until a leader took it; refusals are not stored."""
    batch = content(1)[1]
    for where in itertools.cycle(brokers):
        if time.perf_counter() > deadline:
            raise UnexpectedAnswer(f"{topic}: no acknowledgement within {FAIL_OVER_LIMIT_S:.0f} s of the kill")
        try:
            with raw.Caller(where, FAIL_OVER_LIMIT_S) as caller:
                return caller.produce_one(topic, 0, batch)
        except raw.ErrorAnswer as error:
            if error.code not in NOT_LEADER_ERRORS:
                raise
        time.sleep(0.005)
    raise AssertionError("a cycle of brokers has no end")


MEASURES: dict[str, Callable[[Subject, Plan, float], float]] = {
    "cost": cost,
    "rate": highest_rate,
    "bulk": bulk,
    "fail-over": fail_over,
}


@contextlib.contextmanager
def subjects(*, peer: bool) -> Generator[list[Subject]]:
    """The clusters, all up."""
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(cluster(3, {"shards.pin": "false"}, shards=1, memory="512MiB"))
        found = [Subject(OURS, ours)]
        if peer:
            found.append(Subject(PEER, stack.enter_context(kafka_cluster(3))))
        yield found


def measure(
    chosen: Sequence[str], plan: Plan, rate: float, *, peer: bool, console: Console, minutes: float
) -> dict[str, Any]:
    """Figures by row and cluster, one a round; after so many minutes no row starts a round but its first."""
    deadline = time.monotonic() + 60 * minutes
    results: dict[str, dict[str, list[float]]] = {key: defaultdict(list) for key in chosen}
    with subjects(peer=peer) as both:
        for one in both:
            scheduled(one, rate, 0.5, 10.0 if one.name == PEER and plan is FULL else 2.0)  # virtual machines warm up
        for key in chosen:
            for number in range(plan.rounds):
                if number and time.monotonic() > deadline:
                    break
                for one in both if number % 2 == 0 else reversed(both):
                    value = MEASURES[key](one, plan, rate)
                    results[key][one.name].append(value)
                    console.print(f"{key:10} {one.name:16} {value:12,.3f}", highlight=False)
    return results


def cells(results: Mapping[str, Mapping[str, Sequence[float]]]) -> list[list[str]]:
    """Rows of the table: figure, ours, the peer's, how many times better ours is, the goal, the verdict."""
    out: list[list[str]] = []
    for row in ROWS:
        found = {name: statistics.median(values) for name, values in results.get(row.key, {}).items() if values}
        if OURS not in found:
            continue
        ours, theirs = found[OURS], found.get(PEER)
        ratio = None if not theirs or not ours else theirs / ours if row.less_is_better else ours / theirs
        goal = f"≥ {row.goal:g} ×" if row.goal is not None else f"≤ {row.limit:g} s"
        met = ours <= row.limit if row.limit is not None else None if ratio is None else ratio >= (row.goal or 0)
        shown = [f"{value:,.{row.digits}f}" if value is not None else "–" for value in (ours, theirs)]
        verdict = "" if met is None else "met" if met else "missed"
        rounds = len(results[row.key][OURS])
        out.append([row.title, str(rounds), *shown, "–" if ratio is None else f"{ratio:.1f} ×", goal, verdict])
    return out


HEAD = ("figure", "rounds", OURS, PEER, "ratio", "goal", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of ``make bench-cluster``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description="Measure three brokers beside three.")
    parser.add_argument("--quick", action="store_true", help="shorter runs, one round")
    parser.add_argument("--no-peer", action="store_true", help="without Apache Kafka")
    parser.add_argument("--only", metavar="ROW,…", default=",".join(MEASURES), help="of " + ", ".join(MEASURES))
    parser.add_argument("--rate", type=float, default=1000.0, help="requests a second of the row cost (default 1000)")
    parser.add_argument("--minutes", type=float, default=25.0, help="after so many, no further rounds (default 25)")
    parser.add_argument("--write-docs", action="store_true", help="also into docs/performance.md")
    given = parser.parse_args(arguments)
    chosen = [key for key in MEASURES if key in given.only.split(",")]
    if not chosen or set(given.only.split(",")) - set(MEASURES):
        parser.error(f"--only takes rows of {', '.join(MEASURES)}")
    console = Console() if sys.stdout.isatty() else Console(width=140)
    plan = QUICK if given.quick else FULL
    load_before = os.getloadavg()[0]
    results = measure(chosen, plan, given.rate, peer=not given.no_peer, console=console, minutes=given.minutes)
    shown = cells(results)
    table = Table(title="Three replicas, acks=all; ours syncs a majority's disks before each ack, the peer does not")
    for name in HEAD:
        table.add_column(name, justify="left" if name in ("figure", "") else "right")
    for line in shown:
        table.add_row(*line)
    console.print(table)
    about, command = report.machine(), " ".join(["python -m bench.cluster", *(arguments or sys.argv[1:])])
    target = OUTPUT / "cluster.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"about": about, "command": command, "results": results}, indent=1) + "\n")
    lines = ["| " + " | ".join(HEAD) + " |", "|---|---:|---:|---:|---:|---:|---|"]
    lines += ["| " + " | ".join(line) + " |" for line in shown]
    machine = ", ".join(f"{name} {value}" for name, value in about.items())
    busy = f"load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after"
    text = f"Measured: {machine}, {busy}.\n\n    {command}\n\n" + "\n".join(lines) + "\n"
    target.with_suffix(".md").write_text(text)
    if given.write_docs:
        report.write_document(DOCS, text, BEGIN, END)
    console.print(f"written: {target}, {target.with_suffix('.md')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
