"""The scheduled load while the broker has other things to do: old data read from files, and everything at once.

*Catch-up*: one consumer for each of four partitions reads a log that is larger than the broker's cache from its start
to its end, again and again, as fast as it can, while the scheduled load goes on. *Busy*: segments of the scheduled
load's own topic are rolled after a few seconds and deleted by retention, segments are synced by checkpoints, the
collector runs as ever, and old data are read at 40 MB a second. That all of this really happened is read from
the broker's metrics; a busy load that was not busy gives no figure.

What the readers get is checked as they go (first and last batch of each answer; all of it was read back after it
was written). Of a topic with retention everything that is left is read back: it must be dense from the log's start to
the last acknowledged record.
"""

import dataclasses

from bench import fetch_load, load, plain, raw, schedule, stalls, verify
from bench.rows import Alone, Figures, Plan, Say, ladder, of_produce
from bench.schedule import RFC
from bench.subjects import Subject

COLD_BYTES_A_SECOND = 40e6
SHORT = {"segment.ms": "4000", "retention.bytes": "262144"}
OFTEN = {"log.retention.check.interval.ms": "1000"}
ALONE = Alone(warm=True, ours={"memory.bytes": "512MiB", "checkpoint.ms": "3000", **OFTEN}, peer=OFTEN)
"""512 MiB, so that the log is larger than the cache without many gigabytes to write."""

REALTIME = dataclasses.replace(ALONE, ours={**ALONE.ours, **plain.REALTIME.ours}, one_of_ours=True)

HAPPENED = {
    "checkpoints": "millstream_checkpoints_total",
    "segments_rolled": "millstream_segments_rolled_total",
    "segments_deleted": "millstream_segments_deleted_total",
    "cold_reads": "millstream_cold_reads_total",
}


def _both(
    subject: Subject, plan: Plan, say: Say, name: str, bytes_a_second: float
) -> tuple[schedule.Outcome, dict[str, float], verify.Produced]:
    """The scheduled load on topic ``name`` and the reader of old data beside it."""
    old = plain.filled(subject, plan.cold_bytes, say, 128)
    acknowledged = load.fresh(RFC.partitions)
    warm_s = max(2.0, plan.busy_s / 6)
    with fetch_load.beside(
        subject.bootstrap,
        subject.pid,
        old,
        batch_bytes=len(plain.content(128)[0]),
        seconds=warm_s + plan.busy_s,
        bytes_a_second=bytes_a_second,
    ) as reader:
        outcome = schedule.produce_open(
            subject.bootstrap,
            subject.pid,
            name,
            plain.content(1),
            RFC,
            warm_s=warm_s,
            measured_s=plan.busy_s,
            acknowledged=acknowledged,
            progress=say,
        )
        read = reader.result()
    return outcome, read, verify.Produced(name, acknowledged, 1, frozenset(load.checksums(plain.content(1))))


def catch_up(subject: Subject, plan: Plan, say: Say) -> Figures:
    """Old data as fast as possible while new data come on a schedule."""
    with plain.topic(subject, RFC.partitions) as name:
        plain.filled(subject, plan.cold_bytes, say, 128)
        before = subject.metrics()
        outcome, read, produced = _both(subject, plan, say, name, 0.0)
        figures = of_produce(outcome)
        figures["read_mb_per_s"] = read["bytes"] / 1e6 / read["seconds"]
        figures["read_p99_ms"] = read["p99_ms"]
        now = subject.metrics()
        if before is not None and now is not None:
            files = now.value("millstream_read_bytes_total", source="segment") - before.value(
                "millstream_read_bytes_total", source="segment"
            )
            figures["from_files_percent"] = 100 * files / read["bytes"]
        verify.read_back(subject.bootstrap, produced)
    return figures


def everything(subject: Subject, plan: Plan, say: Say) -> Figures:
    """The scheduled load with all else going on at once."""
    plain.filled(subject, plan.cold_bytes, say, 128)
    with plain.topic(subject, RFC.partitions, SHORT) as name, stalls.watched(subject) as stalled:
        before = subject.metrics()
        outcome, _, produced = _both(subject, plan, say, name, COLD_BYTES_A_SECOND)
        figures = of_produce(outcome) | ladder(outcome) | stalled()
        now = subject.metrics()
        if before is not None and now is not None:
            for figure, metric in HAPPENED.items():
                figures[figure] = now.value(metric) - before.value(metric)
                if not figures[figure]:
                    raise raw.UnexpectedAnswer(f"the busy load was not busy: no {figure}")
        say("reading back what retention has left")
        figures["left_percent"] = 100 * verify.read_back_left(subject.bootstrap, produced)
    return figures
