"""What it costs that a request lands on the wrong shard: a broker with two shards, and the mailbox by itself.

A client does not know which shard holds a partition, and the supervisor gives a connection to whichever shard has the
fewest. So the same load (1 KB, one connection, 64 in flight, one partition) runs again and again on the partitions of a
topic; the broker's metrics tell of each run whether its requests hopped. The hop is the difference of the medians:
both messages and the waking of the other shard. ``micro_ring`` measures the same round trip between two bare
processes.
"""

import json
import select
import statistics
import subprocess
import sys
from array import array

from bench import load, plain, raw, verify
from bench.meter import Outcome, quiet_gc
from bench.rows import Alone, Figures, Plan, Say
from bench.subjects import Subject

ALONE = Alone(shards=2, peer_too=False, one_of_ours=True)
PARTITIONS = 8
TRIES = 60


def hops(subject: Subject) -> float:
    metrics = subject.metrics()
    assert metrics is not None, "only ours has shards"
    return metrics.value("millstream_ring_hops_total")


def measure(subject: Subject, plan: Plan, say: Say) -> Figures:
    """CPU of a request at home and of one that hops."""
    name = plain.new_topic(subject, PARTITIONS)
    acknowledged = load.fresh(PARTITIONS)
    here: list[float] = []
    there: list[float] = []
    for attempt in range(TRIES):
        before, partition = hops(subject), attempt // 2 % PARTITIONS
        known = len(acknowledged[partition])
        outcome = _run(subject, plan, say, name, partition, acknowledged)
        share = (hops(subject) - before) / (len(acknowledged[partition]) - known)
        if 0.001 < share < 0.01:  # messages of a turn travel together, so a request is a small part of one
            raise raw.UnexpectedAnswer(f"{share:.4f} messages a request: neither at home nor on the other shard")
        (there if share >= 0.01 else here).append(outcome.cpu_us)
        say(f"at home {len(here)}, hopped {len(there)}")
        if min(len(here), len(there)) >= plan.hop_runs:
            break
    else:
        raise raw.UnexpectedAnswer(f"of {TRIES} runs {len(here)} were at home and {len(there)} hopped")
    say("reading everything back")
    checksums = frozenset(load.checksums(plain.content(1)))
    verify.read_back(subject.bootstrap, verify.Produced(name, acknowledged, 1, checksums))
    at_home, hopped = statistics.median(here), statistics.median(there)
    say("the mailbox by itself")
    return {"hop_us": hopped - at_home, "home_us": at_home, "hopped_us": hopped, **_bare()}


def _run(
    subject: Subject, plan: Plan, say: Say, topic: str, partition: int, acknowledged: "dict[int, array[int]]"
) -> Outcome:
    """One connection, 64 in flight, one partition."""
    content = plain.content(1)
    frames = [(partition, raw.produce(topic, partition, batch)) for batch in content]
    with select.epoll() as epoll, quiet_gc():
        return load.keep_in_flight(
            epoll,
            [load.Producer(subject.bootstrap, epoll, topic, frames, acknowledged)],
            subject.pid,
            depth=64,
            batch_bytes=len(content[0]),
            warm_s=0.1,
            measured_s=max(1.0, plan.measured_s / 2),
            progress=say,
        )


def _bare() -> Figures:
    """The bare loop, in a process of its own that pins itself to a core."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.micro_ring", "--json", "50000"], capture_output=True, text=True, check=True
    )
    return {f"ring_{name}_us": value for name, value in json.loads(done.stdout).items()}
