"""Reads of closed segments: nothing of them in the broker's memory, all of them in the kernel's page cache.

Each round starts with a broker that has just been started on data that an earlier run of it wrote. First each load is
read as it comes (*started*): a JVM that has fetched nothing yet needs two to eight times the CPU of a warm one for the
same sendfile. Then the loads are read for ``peer_warm_up_s`` seconds, by both brokers alike, and measured again
(*warm*). The kernel charges a part of loopback's work to whichever end runs, so *both ends* counts the generator's CPU,
too.
"""

from bench import fetch_load, plain
from bench.meter import Outcome
from bench.rows import Alone, Figures, Plan, Say
from bench.subjects import Subject

ALONE = Alone()

SHAPES = (("small_1m", 1, 1 << 20), ("bulk_1m", 128, 1 << 20), ("small_128k", 1, 1 << 17), ("bulk_128k", 128, 1 << 17))
"""Name, records of 1 KB a batch, bytes a request."""


def measure(subject: Subject, plan: Plan, say: Say) -> Figures:
    """GB a CPU-second of each shape, started and warm."""
    for records in (1, 128):
        plain.filled(subject, plan.fetch_bytes, say, records)
    say("starting again")
    subject.end(kill=False)
    subject.start()
    figures: Figures = {}
    for name, records, size in SHAPES:
        outcome = _read(subject, plan, say, records, size, 0.0, plan.measured_s)
        figures[f"{name}_started"] = outcome.gb_per_cpu_s
    for _, records, size in SHAPES:
        say("warming up")
        _read(subject, plan, say, records, size, plan.peer_warm_up_s / len(SHAPES), 0.1)
    for name, records, size in SHAPES:
        outcome = _read(subject, plan, say, records, size, plan.warm_s, plan.measured_s)
        figures[f"{name}_warm"] = outcome.gb_per_cpu_s
        figures[f"{name}_both"] = outcome.bytes / 1e9 / (outcome.broker_cpu_s + outcome.client_cpu_s)
    return figures


def _read(
    subject: Subject, plan: Plan, say: Say, records: int, max_bytes: int, warm_s: float, measured_s: float
) -> Outcome:
    return fetch_load.fetch_round(
        subject.bootstrap,
        subject.pid,
        plain.filled(subject, plan.fetch_bytes, say, records),
        max_bytes=max_bytes,
        batch_bytes=len(plain.content(records)[0]),
        warm_s=warm_s,
        measured_s=measured_s,
        progress=say,
    )
