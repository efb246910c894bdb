"""What it costs to have many partitions in a cluster, to lose a broker, and to fill a replica anew.

    python -m bench.members [--partitions 200] [--idle 10] [--fill 64] [--only ROW,…] [--peer]

Three brokers with three replicas of everything; figures are told and never demanded. With ``--peer`` three Apache Kafka
brokers do the same first, but for the last row. Both are asked by metadata how far they are; the brokers of one cluster
are stopped before those of the other one start.

=========  =========================================================================================================
create     seconds until the request is answered, until metadata say that all partitions are led and in sync, and until
           each has acknowledged a record with acks=all; broker-CPU seconds for all that, all brokers together
idle       per cent of a core that each broker takes with nothing to do, and its memory (PSS)
loaded     the same while a client sends a fixed number of requests of 1 KB a second to a topic beside the many, and the
           CPU of all brokers a request
fail-over  seconds from kill -9 of a broker until every partition has a leader on another one
one down   per cent of a core that the others take with nothing to do while the killed broker is down
restart    seconds until the killed broker serves, and until everything is in sync
catch-up   MB/s from the start of an empty broker until its replica is whole; p99 of a produce before and meanwhile
=========  =========================================================================================================

Exit code 0: everything was measured, what was acknowledged was read back. Figures go to ``.cache/bench/members.json``.
"""

import argparse
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewTopic

from bench.cluster import QUICK, Subject, scheduled
from bench.meter import Outcome
from bench.peers.kafka_cluster import kafka_cluster
from bench.processes import cpu_seconds, pss_bytes
from bench.raw import UnexpectedAnswer
from millstream.testing.clusters import Cluster, cluster

OUTPUT: Final = Path(".cache/bench")
ROWS: Final = ("create", "idle", "loaded", "fail-over", "one down", "restart", "catch-up")
OF_MANY: Final = frozenset(ROWS[:-1])
"""Rows that need the many partitions."""
VICTIM: Final = 3
REPLICAS: Final = 3
LOADED_S: Final = 10.0
LIMIT_S: Final = 600.0
RATE: Final = 200.0
RECORDS_A_MB: Final = 16
QUIET_S: Final = 8.0
"""After a change: leaders move to the preferred replicas, heartbeats settle."""

Figures = dict[str, Any]


def seconds_until(what: str, holds: Callable[[], bool]) -> float:
    """How long it takes; asked five times a second."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > LIMIT_S:
            raise UnexpectedAnswer(f"not after {LIMIT_S:.0f} s: {what}")
        time.sleep(0.2)
    return time.monotonic() - begun


def in_sync(subject: Subject, partitions: int) -> bool:
    """Whether so many partitions are there, all led and with all replicas in sync."""
    found = subject.admin.list_topics("many", timeout=60).topics["many"].partitions.values()
    return len(found) >= partitions and all(part.leader > 0 and len(part.isrs) == REPLICAS for part in found)


def _cpu(subject: Subject) -> dict[int, float]:
    """CPU seconds of each broker that runs, with all its processes."""
    return {node: cpu_seconds(broker.pid) for node, broker in _alive(subject).items()}


def _alive(subject: Subject) -> dict[int, Any]:
    return {node: broker for node, broker in subject.brokers.brokers.items() if broker.running}


def create(subject: Subject, partitions: int) -> Figures:
    before, begun = _cpu(subject), time.monotonic()
    made = subject.admin.create_topics(
        [NewTopic("many", partitions, REPLICAS)], operation_timeout=LIMIT_S, request_timeout=LIMIT_S
    )
    try:
        made["many"].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.REQUEST_TIMED_OUT:  # it may still be carried out
            raise
    answered = time.monotonic() - begun
    seconds_until("all partitions in sync", lambda: in_sync(subject, partitions))
    in_sync_s = time.monotonic() - begun
    _one_record_each(subject, partitions)
    seconds, after = time.monotonic() - begun, _cpu(subject)
    return {
        "answered_s": answered,
        "in_sync_s": in_sync_s,
        "seconds": seconds,
        "cpu_s": sum(after.values()) - sum(before.values()),
    }


def _one_record_each(subject: Subject, partitions: int) -> None:
    """Metadata may name a leader that does not lead yet: a record in every partition, acknowledged by all replicas."""
    settings = {"bootstrap.servers": subject.brokers.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    producer = Producer({**settings, "retry.backoff.ms": 20, "retry.backoff.max.ms": 50})
    failed: list[str] = []

    def delivered(error: object, message: object) -> None:
        _ = message
        if error is not None:
            failed.append(str(error))

    for partition in range(partitions):
        producer.produce("many", b"one", partition=partition, on_delivery=delivered)
    producer.flush(LIMIT_S)
    if failed:
        raise UnexpectedAnswer(f"{len(failed)} first records were refused: {failed[0]}")


def _per_cent(subject: Subject, meanwhile: Callable[[], object]) -> Figures:
    before, begun = _cpu(subject), time.monotonic()
    meanwhile()
    passed, after = time.monotonic() - begun, _cpu(subject)
    return {f"broker {node}, %": 100 * (after[node] - before[node]) / passed for node in before}


def idle(subject: Subject, seconds: float) -> Figures:
    time.sleep(QUIET_S)
    figures = _per_cent(subject, lambda: time.sleep(seconds))
    return figures | {f"broker {node}, MB": pss_bytes(broker.pid) / 1e6 for node, broker in _alive(subject).items()}


def loaded(subject: Subject) -> Figures:
    outcomes: list[Outcome] = []
    figures = _per_cent(subject, lambda: outcomes.append(scheduled(subject, RATE, QUICK.warm_s, LOADED_S)))
    return {"requests/s": RATE, "CPU µs a request": outcomes[0].cpu_us, **figures}


def fail_over(subject: Subject) -> Figures:
    def led_elsewhere() -> bool:
        found = subject.admin.list_topics("many", timeout=60).topics["many"].partitions.values()
        return all(part.leader not in (-1, VICTIM) for part in found)

    subject.brokers.kill(VICTIM)
    return {"seconds": seconds_until("every partition is led", led_elsewhere)}


def restart(subject: Subject, partitions: int) -> Figures:
    begun = time.monotonic()
    subject.brokers.restart(VICTIM)
    serves = time.monotonic() - begun
    return {"serves_s": serves, "in_sync_s": serves + seconds_until("in sync", lambda: in_sync(subject, partitions))}


def catch_up(brokers: Cluster, subject: Subject, megabytes: int) -> Figures:
    """Fill a topic, wipe a replica of it, and produce on schedule to another topic before and meanwhile."""
    made = subject.admin.create_topics([NewTopic("filled", 1, 3)], operation_timeout=60)
    made["filled"].result()
    _fill(brokers, megabytes)
    before = scheduled(subject, RATE, QUICK.warm_s, QUICK.measured_s)
    brokers.kill(VICTIM)
    begun = time.monotonic()
    victim = brokers.replace(VICTIM)
    with ThreadPoolExecutor(1) as beside:
        under_way = beside.submit(scheduled, subject, RATE, QUICK.warm_s, QUICK.measured_s)
        seconds_until("the wiped replica is whole", lambda: _end(victim.http, "filled") >= megabytes * RECORDS_A_MB)
        seconds = time.monotonic() - begun
        meanwhile = under_way.result()
    return {
        "MB": megabytes,
        "seconds": seconds,
        "MB/s": megabytes / seconds,
        "p99 before, ms": before.percentile_us(99) / 1000,
        "p99 meanwhile, ms": meanwhile.percentile_us(99) / 1000,
    }


def _end(http: str, topic: str) -> int:
    """Where the log of partition 0 ends on a broker."""
    with urllib.request.urlopen(f"{http}/v1/recovery", timeout=60) as answer:
        groups = json.load(answer)["groups"]
    return max((group["end_offset"] for group in groups if group["topic"] == topic), default=0)


def _fill(brokers: Cluster, megabytes: int) -> None:
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all", "linger.ms": 20, "log_level": 0})
    failed: list[str] = []

    def delivered(error: object, message: object) -> None:
        _ = message
        if error is not None:
            failed.append(str(error))

    for _ in range(megabytes):
        for _ in range(RECORDS_A_MB):
            producer.produce("filled", os.urandom((1 << 20) // RECORDS_A_MB), on_delivery=delivered)
        producer.flush(120)
    if failed:
        raise UnexpectedAnswer(f"{len(failed)} records of the filling were refused: {failed[0]}")


def measure(rows: Sequence[str], partitions: int, idle_s: float, megabytes: int) -> dict[str, Figures]:
    """The figures of the rows for three brokers of ours."""
    with cluster(3, {"replica.install.max.bytes.per.second": 1 << 30}, memory="256MiB") as brokers:
        subject = Subject("millstream × 3", brokers)
        found = of_many(subject, rows, partitions, idle_s)
        if "catch-up" in rows:
            found["catch-up"] = catch_up(brokers, subject, megabytes)
            _tell(subject, "catch-up", found)
    return found


def of_many(subject: Subject, rows: Sequence[str], partitions: int, idle_s: float) -> dict[str, Figures]:
    """The figures of those rows that need many partitions; the rows after `fail-over` need the broker that it kills."""
    found: dict[str, Figures] = {}
    verbs: dict[str, Callable[[], Figures]] = {
        "create": lambda: create(subject, partitions),
        "idle": lambda: idle(subject, idle_s),
        "loaded": lambda: loaded(subject),
        "fail-over": lambda: fail_over(subject),
        "one down": lambda: idle(subject, idle_s),
        "restart": lambda: restart(subject, partitions),
    }
    needed = {"create", *rows} | ({"fail-over"} if {"one down", "restart"} & {*rows} else set())
    for row, figures in verbs.items():
        if row in needed and OF_MANY & {*rows}:
            found[row] = figures()
            _tell(subject, row, found)
    return found


def _tell(subject: Subject, row: str, found: dict[str, Figures]) -> None:
    print(subject.name, row, json.dumps(found[row]), f"(load {os.getloadavg()[0]:.1f})", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.members", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--idle", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--fill", type=int, default=64, metavar="MB")
    parser.add_argument("--only", default=",".join(ROWS), metavar="ROW,…")
    parser.add_argument("--peer", action="store_true", help="measure three Apache Kafka brokers, too")
    given = parser.parse_args(arguments)
    rows = given.only.split(",")
    if unknown := sorted({*rows} - {*ROWS}):
        parser.error(f"no row {unknown[0]}; there are {', '.join(ROWS)}")
    report: dict[str, Any] = {"partitions": given.partitions}
    if given.peer:
        with kafka_cluster(3) as brokers:
            report["kafka"] = of_many(Subject("kafka × 3", brokers), rows, given.partitions, given.idle)
    report["rows"] = measure(rows, given.partitions, given.idle, given.fill)
    report["load"] = os.getloadavg()[0]
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "members.json").write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
