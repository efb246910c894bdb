"""What it costs to have many partitions in a cluster, to lose a broker, and to fill a replica anew.

    python -m bench.members [--partitions 200] [--idle 10] [--fill 64] [--only ROW,…]

Three brokers with three replicas of everything; figures of ours alone, told and never demanded.

=========  =========================================================================================================
create     seconds until all partitions are led and in sync, and broker-CPU seconds for that, all brokers together
idle       per cent of a core that each broker takes with nothing to do
fail-over  seconds from kill -9 of a broker until every partition has a leader on another one
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

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from bench.cluster import QUICK, Subject, scheduled
from bench.processes import cpu_seconds
from bench.raw import UnexpectedAnswer
from millstream.testing.clusters import Cluster, cluster

OUTPUT: Final = Path(".cache/bench")
ROWS: Final = ("create", "idle", "fail-over", "restart", "catch-up")
VICTIM: Final = 3
LIMIT_S: Final = 600.0
RATE: Final = 200.0
RECORDS_A_MB: Final = 16
QUIET_S: Final = 8.0
"""After a change: leaders move to the preferred replicas, heartbeats settle."""

Figures = dict[str, Any]


def status(brokers: Cluster, node: int = 1) -> dict[str, Any]:
    """What a broker says of its cluster."""
    with urllib.request.urlopen(f"{brokers.brokers[node].http}/v1/cluster", timeout=60) as answer:
        return json.load(answer)


def seconds_until(what: str, holds: Callable[[], bool]) -> float:
    """How long it takes; asked five times a second."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > LIMIT_S:
            raise UnexpectedAnswer(f"not after {LIMIT_S:.0f} s: {what}")
        time.sleep(0.2)
    return time.monotonic() - begun


def in_sync(brokers: Cluster, partitions: int) -> bool:
    """Whether so many partitions are there, all led and in sync."""
    now = status(brokers)
    return now["partitions"] >= partitions and not now["leaderless_count"] and not now["under_replicated_count"]


def _cpu(brokers: Cluster) -> dict[int, float]:
    """CPU seconds of each broker, with all its processes."""
    return {node: cpu_seconds(broker.pid) for node, broker in brokers.brokers.items()}


def create(brokers: Cluster, subject: Subject, partitions: int) -> Figures:
    before, begun = _cpu(brokers), time.monotonic()
    made = subject.admin.create_topics(
        [NewTopic("many", partitions, 3)], operation_timeout=LIMIT_S, request_timeout=LIMIT_S
    )
    made["many"].result()
    seconds_until("all partitions in sync", lambda: in_sync(brokers, partitions))
    seconds, after = time.monotonic() - begun, _cpu(brokers)
    return {"seconds": seconds, "cpu_s": sum(after.values()) - sum(before.values())}


def idle(brokers: Cluster, seconds: float) -> Figures:
    time.sleep(QUIET_S)
    before, begun = _cpu(brokers), time.monotonic()
    time.sleep(seconds)
    passed, after = time.monotonic() - begun, _cpu(brokers)
    return {f"broker {node}, %": 100 * (after[node] - before[node]) / passed for node in before}


def fail_over(brokers: Cluster) -> Figures:
    def led_elsewhere() -> bool:
        now = status(brokers)
        held = {broker["id"]: broker["leaders"] for broker in now["brokers"]}
        return not now["leaderless_count"] and not held[VICTIM]

    brokers.kill(VICTIM)
    return {"seconds": seconds_until("every partition is led", led_elsewhere)}


def restart(brokers: Cluster, partitions: int) -> Figures:
    begun = time.monotonic()
    brokers.restart(VICTIM)
    serves = time.monotonic() - begun
    return {"serves_s": serves, "in_sync_s": serves + seconds_until("in sync", lambda: in_sync(brokers, partitions))}


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
    """The figures of the rows; `fail-over` and `restart` need the broker that the other one kills or starts."""
    found: dict[str, Figures] = {}

    def take(row: str, figures: Callable[[], Figures]) -> None:
        if row in rows:
            found[row] = figures()
            print(row, json.dumps(found[row]), f"(load {os.getloadavg()[0]:.1f})", flush=True)

    with cluster(3, {"replica.install.max.bytes.per.second": 1 << 30}, memory="256MiB") as brokers:
        subject = Subject("millstream × 3", brokers)
        if {"create", "idle", "fail-over", "restart"} & {*rows}:
            figures = create(brokers, subject, partitions)
            take("create", lambda: figures)
            take("idle", lambda: idle(brokers, idle_s))
            if {"fail-over", "restart"} & {*rows}:
                failed_over = fail_over(brokers)
                take("fail-over", lambda: failed_over)
                restarted = restart(brokers, partitions)
                take("restart", lambda: restarted)
        take("catch-up", lambda: catch_up(brokers, subject, megabytes))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.members", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--idle", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--fill", type=int, default=64, metavar="MB")
    parser.add_argument("--only", default=",".join(ROWS), metavar="ROW,…")
    given = parser.parse_args(arguments)
    rows = given.only.split(",")
    if unknown := sorted({*rows} - {*ROWS}):
        parser.error(f"no row {unknown[0]}; there are {', '.join(ROWS)}")
    figures = measure(rows, given.partitions, given.idle, given.fill)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    report = {"partitions": given.partitions, "load": os.getloadavg()[0], "rows": figures}
    (OUTPUT / "members.json").write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
