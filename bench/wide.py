"""A broker's birth, and brokers with many partitions: what they cost at rest, and what it costs to have so many.

A thousand partitions: idle cost, and how long a start takes after a clean stop and after kill -9. Ten thousand, in 16
topics: creating them, one Metadata request for all of them, small produce over all of them, idle cost.
"""

import struct
import time

from bench import load, plain, processes, raw, verify
from bench.rows import Alone, Figures, Plan, Say, of_produce
from bench.subjects import Subject, seconds_to_first_ack

EMPTY = Alone(start=False)
THOUSAND = Alone()
TEN_THOUSAND = Alone(warm=True, one_of_ours=True, ours={"partitions.per.shard.max": "20000"})
TOPICS, PARTITIONS = 16, 625
METADATA = 3
SETTLE_S = 60.0


def start_empty(subject: Subject, plan: Plan, say: Say) -> Figures:
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


def _idle(subject: Subject, plan: Plan, say: Say) -> Figures:
    """CPU and memory of a broker that nobody asks for anything, and that has done what was left to do."""
    say("settling")
    time.sleep(plan.idle_s / 3)
    processes.wait_for_rest(subject.pid, SETTLE_S, 2.0)
    say(f"idle for {plan.idle_s:.0f} s")
    before, began = subject.cpu_seconds(), time.monotonic()
    time.sleep(plan.idle_s)
    return {
        "idle_core_percent": 100 * (subject.cpu_seconds() - before) / (time.monotonic() - began),
        "idle_pss_mb": subject.pss_bytes() / 1e6,
    }


def thousand_partitions(subject: Subject, plan: Plan, say: Say) -> Figures:
    """1000 partitions with a record each. The subject runs."""
    topics = {f"wide-{i}": 100 for i in range(10)}
    say("creating 1000 partitions")
    with raw.Caller(subject.bootstrap) as caller:
        caller.create_topics(topics)
        record = raw.batch([b"one"])
        for name, count in topics.items():
            for partition in range(count):
                caller.produce_one(name, partition, record)
    figures = _idle(subject, plan, say)
    for name, kill in (("clean", False), ("killed", True)):
        say(f"start with 1000 partitions, {name}")
        subject.end(kill=kill)
        began = time.monotonic()
        subject.spawn()
        figures[f"first_ack_{name}_s"] = seconds_to_first_ack(subject.bootstrap, "wide-0", began, create=False)
    return figures


def ten_thousand_partitions(subject: Subject, plan: Plan, say: Say) -> Figures:
    """10 000 partitions. Creating counts from the request to the moment when each of them can be fetched from."""
    names = [f"wide-{i:02d}" for i in range(TOPICS)]
    say("creating 10 000 partitions")
    began, cpu = time.monotonic(), subject.cpu_seconds()
    with raw.Caller(subject.bootstrap, timeout_s=300.0) as caller:
        for name in names:
            caller.create_topics({name: PARTITIONS})
        figures: Figures = {"create_s": time.monotonic() - began, "create_cpu_s": subject.cpu_seconds() - cpu}
        say("asking for all metadata")
        figures |= _metadata(caller, names, subject)
    say("producing to all of them")
    outcome, produced = load.produce_topics(
        subject.bootstrap,
        subject.pid,
        names,
        plain.content(1),
        partitions=PARTITIONS,
        depth=8,
        warm_s=2 * plan.warm_s,
        measured_s=plan.measured_s,
        progress=say,
    )
    say("reading everything back")
    for each in produced:
        verify.read_back(subject.bootstrap, each)
    return figures | of_produce(outcome) | _idle(subject, plan, say)


def _metadata(caller: raw.Caller, names: list[str], subject: Subject, asks: int = 8) -> Figures:
    """Metadata, version 9, of all topics; each answer must name every partition."""
    body = raw.uvarint(len(names) + 1) + b"".join(raw.compact_string(name) + b"\0" for name in names)
    request = raw.frame(METADATA, 9, body + b"\0\0\0\0")
    times: list[float] = []
    cpu = subject.cpu_seconds()
    for _ in range(asks):
        began = time.perf_counter()
        answer = caller.call(request)
        times.append(time.perf_counter() - began)
        if (found := _partitions_named(answer)) != TOPICS * PARTITIONS:
            raise raw.UnexpectedAnswer(f"metadata of {found} partitions, not of {TOPICS * PARTITIONS}")
    cpu = subject.cpu_seconds() - cpu
    return {"metadata_ms": 1000 * sorted(times)[asks // 2], "metadata_cpu_ms": 1000 * cpu / asks}


def _partitions_named(answer: bytearray) -> int:
    """How many partitions an answer (Metadata 9) names without an error."""
    count, at = raw.read_uvarint(answer, 9)  # brokers
    for _ in range(count - 1):
        length, at = raw.read_uvarint(answer, at + 4)
        length, at = raw.read_uvarint(answer, at + length - 1 + 4)  # behind the host, the port
        at += max(0, length - 1) + 1  # the rack, the tags
    length, at = raw.read_uvarint(answer, at)
    topics, at = raw.read_uvarint(answer, at + max(0, length - 1) + 4)  # behind the cluster's id, the controller's
    found = 0
    for _ in range(topics - 1):
        error = struct.unpack_from(">h", answer, at)[0]
        if error:
            raise raw.UnexpectedAnswer(f"metadata: error {error}")
        length, at = raw.read_uvarint(answer, at + 2)
        partitions, at = raw.read_uvarint(answer, at + length - 1 + 1)
        for _ in range(partitions - 1):
            found += struct.unpack_from(">h", answer, at)[0] == 0
            at += 2 + 4 + 4 + 4
            for _ in range(3):  # replicas, in sync, offline
                length, at = raw.read_uvarint(answer, at)
                at += 4 * max(0, length - 1)
            at += 1
        at += 4 + 1
    return found
