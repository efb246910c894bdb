"""``make soak``: hours of the scheduled load with consumer groups at its tail, and a verdict on what that did.

    python -m bench.soak [--duration 2h] [--rate 10240] [--groups 2] [--memory 512MiB] [--write-docs]

One broker with one shard takes 10 240 requests of 1 KB a second on a schedule into 128 partitions, whose segments are
rolled and deleted by retention all the time; each group reads everything and checks it (``tail_load``). Every few
seconds memory (PSS), file descriptors, fragments, callbacks, CPU, latencies, log lines, and how much of its cores the
machine's host withheld are written down.

It passes when, over the second half, the trends of memory, descriptors and fragments are flat (``trend``: at most 2 %
of their level), no callback of a shard took more than 50 ms after the warm-up, the log has no ERROR line, every
acknowledged offset was the next one and every group has read everything. Latencies are shown, not judged. The exit code
is 0 when it passes, 1 when a limit is broken, and the samples are in ``.cache/soak/soak.json`` either way, with a plot
beside them. On a machine that has other work stalls say little about the broker; how much the generator itself sent
late shows that.
"""

import argparse
import dataclasses
import itertools
import json
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import load, plain, plots, raw, report, schedule, trend
from bench.buckets import Buckets
from bench.child import Child
from bench.raw import UnexpectedAnswer
from bench.schedule import RFC, Schedule
from bench.soak_watch import COUNTS
from bench.subjects import complaints
from bench.tail_load import Tail
from millstream.testing.process import Broker

OUTPUT = Path(".cache/soak")
DOCUMENT = Path("docs/notes/soak.md")
PLOT = Path("docs/images/soak.png")
BEGIN, END = "<!-- long run: written by make soak -->", "<!-- end of the long run -->"
TOPIC = "soak"
TOPIC_SETTINGS = {"segment.bytes": str(1 << 20), "retention.bytes": str(4 << 20)}
SETTINGS = {"log.retention.check.interval.ms": "5000", "stall.limit.ms": "50"}
SAMPLES = 720
FLAT = (
    ("pss_bytes", "memory (PSS), MB", 1e-6, 0.02, 4e6),
    ("open_files", "file descriptors", 1.0, 0.02, 2.0),
    ("fragments", "fragments", 1.0, 0.02, 64.0),
)
"""Series, its title, factor for showing it, and what it may gain over the second half: a share or an amount."""


@dataclass
class Run:
    """What was seen: a sample every few seconds, ``at`` in seconds since the load began."""

    warm_s: float
    samples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    lines: list[str] = field(default_factory=list[str])
    """What the broker complained of."""

    outcome: dict[str, float] = field(default_factory=dict[str, float])
    failure: str = ""


class NextOffset:
    """Takes the acknowledged base offsets of a partition: each must be the one behind the last."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.expected = 0

    def append(self, base: int, /) -> None:
        if base != self.expected:
            raise UnexpectedAnswer(f"partition {self.partition}: acknowledged {base}, {self.expected} is the next")
        self.expected += 1


class Progress:
    """Called twice a second by the load: gathers what the other processes said, and shows a line."""

    def __init__(self, run: Run, watch: Child, tail: Tail, latencies: Buckets, until_s: float) -> None:
        self._run, self._watch, self._tail, self._latencies = run, watch, tail, latencies
        self._until_s = until_s
        self._begin = self._shown = self._cpu = 0.0
        self._read: dict[str, float] = {}

    def begun(self, moment: float) -> None:
        self._begin = moment
        self._tail.tell(moment)

    def __call__(self, text: str) -> None:
        for figures in self._tail.heard():
            self._read = figures
        for sample in self._watch.heard():
            sample["at"] -= self._begin
            latencies = self._latencies
            for name, percent in (("p50", 50), ("p99", 99), ("p999", 99.9), ("max", 100)):
                sample[f"produce_{name}_ms"] = latencies.percentile_us(percent) / 1000
            latencies.clear()
            for name, percent in (("p50", "50"), ("p99", "99"), ("p999", "99.9"), ("max", "100")):
                sample[f"end_{name}_ms"] = self._read.get(f"q{percent}", 0.0)
            sample["behind"] = self._read.get("behind", 0.0)
            self._run.samples.append(sample)
        now = time.perf_counter() - self._begin
        if self._run.samples and now >= self._shown + (0.5 if sys.stdout.isatty() else 30.0):
            self._shown = now
            self._show(self._run.samples[-1], now, text)

    def _show(self, sample: dict[str, Any], now: float, text: str) -> None:
        stalled = sum(each["callbacks"]["long_stalls"] for each in self._run.samples)
        line = (
            f"{clock(now)} of {clock(self._until_s)}  {sample['pss_bytes'] / 1e6:.0f} MB  "
            f"{sample['open_files']} files  {sample['fragments']:.0f} fragments  "
            f"p99 {sample['produce_p99_ms']:.1f} ms, to groups {sample['end_p99_ms']:.1f}  "
            f"stalls {stalled:.0f}  errors {sample['log_error']:.0f}  {text.rsplit(', ', 1)[-1]}"
        )
        print(f"\r{line:<118}" if sys.stdout.isatty() else line, end="" if sys.stdout.isatty() else "\n", flush=True)


def clock(seconds: float) -> str:
    """A duration as h:mm:ss."""
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"


def soak(broker: Broker, run: Run, plan: Schedule, duration_s: float, groups: int) -> None:
    """The load, until it is over or something is not as it must be."""
    with raw.Caller(broker.bootstrap) as caller:
        caller.create_topics({TOPIC: plan.partitions}, TOPIC_SETTINGS)
    content = plain.content(1)
    every_s = max(1.0, duration_s / SAMPLES)
    latencies = Buckets()
    with (
        Child(
            "bench.soak_watch", {"pid": broker.pid, "metrics": f"{broker.http}/metrics", "every_s": every_s}
        ) as watch,
        Tail(
            broker.bootstrap,
            TOPIC,
            plan,
            groups=groups,
            checksums=load.checksums(content),
            batch_bytes=len(content[0]),
            planned=int(plan.rate * (run.warm_s + duration_s)),
            count_from=int(plan.rate * run.warm_s),
            report_s=every_s,
        ) as tail,
    ):
        progress = Progress(run, watch, tail, latencies, run.warm_s + duration_s)
        outcome = schedule.produce_open(
            broker.bootstrap,
            broker.pid,
            TOPIC,
            content,
            plan,
            warm_s=run.warm_s,
            measured_s=duration_s,
            acknowledged={i: NextOffset(i) for i in range(plan.partitions)},
            latencies=latencies,
            begun=progress.begun,
            progress=progress,
        )
        read = tail.result()
    run.outcome = {
        "requests": outcome.requests,
        "cores": outcome.broker_cpu_s / outcome.seconds,
        "late_sends": outcome.late_sends,
        "read": read["read"],
        "groups": groups,
        "rate": plan.rate,
        **{f"end_{name}_ms": read[f"q{q}"] for name, q in (("p50", "50"), ("p99", "99"), ("p999", "99.9"))},
    }


@dataclass(frozen=True)
class Verdict:
    """One check of the verdict and its result."""

    title: str
    figure: str
    limit: str
    good: bool


def judge(run: Run) -> list[Verdict]:
    """What holds and what does not."""
    late = [sample for sample in run.samples if sample["at"] >= run.warm_s]
    verdicts: list[Verdict] = []
    if len(late) < 20:
        return [Verdict("samples after the warm-up", str(len(late)), "≥ 20", good=False)]
    for name, title, factor, share, least in FLAT:
        found = trend.of_second_half([(sample["at"], sample[name]) for sample in late], share, least)
        figure = f"{found.level * factor:,.0f}, {found.growth * factor:+,.1f} ({found.a_hour * factor:+,.1f} an hour)"
        verdicts.append(Verdict(f"{title}: level, growth", figure, f"≤ +{found.allowed * factor:,.1f}", found.flat))
    stalled = sum(sample["callbacks"]["long_stalls"] for sample in late)
    verdicts.append(Verdict("callbacks over 50 ms", f"{stalled:.0f}", "0", stalled == 0))
    errors = sum(" ERROR " in line for line in run.lines)
    verdicts.append(Verdict("ERROR lines", f"{errors}", "0", errors == 0))
    whole = not run.failure
    read = f"{run.outcome['read']:,.0f} records" if whole else run.failure.splitlines()[0]
    verdicts.append(Verdict("read and checked by the groups", read, "everything", whole))
    return verdicts


def remarks(run: Run) -> list[tuple[str, str]]:
    """Figures that are shown and not judged."""
    late = [sample for sample in run.samples if sample["at"] >= run.warm_s]
    found: list[tuple[str, str]] = []
    for name, title in (("produce", "produce"), ("end", "sent to received by a group")):
        worst = sorted(sample[f"{name}_p99_ms"] for sample in late)
        tails = sorted(sample[f"{name}_p999_ms"] for sample in late)
        figure = f"{worst[len(worst) // 2]:.2f} / {tails[len(tails) // 2]:.2f}"
        found.append((f"{title}, p99 / p99.9 of the middle sample, ms", figure))
    if run.outcome:
        found.append(("broker cores in use", f"{run.outcome['cores']:.2f}"))
        found.append(("requests", f"{run.outcome['requests']:,.0f}, {run.outcome['rate']:,.0f} a second"))
        found.append(("sent late by the generator", f"{run.outcome['late_sends']:,.0f}"))
    found.append(
        ("longest callback, ms (at most)", f"{max(s['callbacks'].get('callback_max_ms', 0) for s in late):.1f}")
    )
    found += withheld(late)
    found += [(name.replace("_", " "), f"{late[-1][name] - late[0][name]:,.0f}") for name in COUNTS]
    found.append(("WARN lines", str(sum(" WARN " in line for line in run.lines))))
    return found


def withheld(samples: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """What of the cores the machine's host withheld: on the whole, and while a callback took too long."""
    rates = [
        (1000 * (later["stolen_s"] - earlier["stolen_s"]) / (later["at"] - earlier["at"]), later)
        for earlier, later in itertools.pairwise(samples)
    ]
    ordered = sorted(rate for rate, _ in rates)
    title = "withheld by the host, ms of cores a second"
    found = [(f"{title}, middle and worst sample", f"{ordered[len(ordered) // 2]:.0f} / {ordered[-1]:.0f}")]
    stalled = [(rate, sample) for rate, sample in rates if sample["callbacks"]["long_stalls"]]
    found += [(f"{title}, around the long callback at {clock(s['at'])}", f"{rate:.0f}") for rate, s in stalled]
    return found


def section(run: Run, verdicts: Sequence[Verdict], command: str) -> str:
    """The generated section of ``docs/notes/soak.md``."""
    about = report.machine()
    measured = (
        f"Measured {about['date']} at commit `{about['commit']}`: {about['processor']}, Linux {about['kernel']}, "
        f"Python {about['python']}; {clock(run.samples[-1]['at'] - run.warm_s)} after a warm-up of {clock(run.warm_s)}."
    )
    lines = [
        measured,
        "",
        f"    {command}",
        "",
        "| | found | limit | |",
        "|---|---:|---:|---|",
        *(f"| {v.title} | {v.figure} | {v.limit} | {'held' if v.good else 'broken'} |" for v in verdicts),
        *(f"| {title} | {figure} | | |" for title, figure in remarks(run)),
        "",
        f"![The long run: memory, descriptors, latency and stalls over time](../images/{PLOT.name})",
    ]
    return "\n".join(lines) + "\n"


def seconds(text: str) -> float:
    """``2h``, ``10m``, ``90s`` or a number of seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(h|m|s|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 2h, 10m or 90s")
    return float(match[1]) * {"h": 3600, "m": 60, "s": 1, "": 1}[match[2]]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="The scheduled load for hours.")
    parser.add_argument("--duration", type=seconds, default=7200.0, metavar="2h", help="after the warm-up (default 2h)")
    parser.add_argument("--warm-up", type=seconds, metavar="2m", help="default 2m, or a quarter of a short run")
    parser.add_argument("--rate", type=float, default=RFC.rate, help="requests a second (default 10240)")
    parser.add_argument("--groups", type=int, default=2, help="consumer groups at the tail (default 2)")
    parser.add_argument("--memory", default="512MiB", help="memory.bytes of the broker (default 512MiB)")
    parser.add_argument("--write-docs", action="store_true", help=f"put verdict and plot into {DOCUMENT}")
    given = parser.parse_args(arguments)
    if given.duration < 30:
        parser.error("a trend needs at least 30 s")
    given.warm_up = min(120.0, given.duration / 4) if given.warm_up is None else given.warm_up
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of ``make soak``; returns the exit code."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    given = parse(arguments)
    run = Run(given.warm_up)
    with Broker(settings=SETTINGS, memory=given.memory, shards=1) as broker:
        try:
            soak(broker, run, dataclasses.replace(RFC, rate=given.rate), given.duration, given.groups)
        except (UnexpectedAnswer, OSError) as error:
            run.failure = f"{type(error).__name__}: {error}"
        finally:
            log = broker.log_path.read_text(errors="replace")
            run.lines = complaints(log)
            write(run)
    print()
    if run.failure:
        print(run.failure, *log.splitlines()[-30:], sep="\n", file=sys.stderr)
    if not run.samples:
        return 1
    verdicts = judge(run)
    for verdict in verdicts:
        print(f"{'held  ' if verdict.good else 'BROKEN'}  {verdict.title}: {verdict.figure} (limit {verdict.limit})")
    if len(verdicts) > 1:
        for title, figure in remarks(run):
            print(f"        {title}: {figure}")
    if run.outcome and run.outcome["late_sends"] > 0.01 * run.outcome["requests"]:
        share = run.outcome["late_sends"] / run.outcome["requests"]
        print(f"        note: the generator itself sent {share:.0%} late: the machine had other work, which stalls too")
    plots.soak(asdict(run), OUTPUT / "soak.png")
    print(f"written: {OUTPUT / 'soak.json'}, {OUTPUT / 'soak.png'}")
    if given.write_docs and len(verdicts) > 1:
        command = " ".join(["python -m bench.soak", *(sys.argv[1:] if arguments is None else arguments)])
        report.write_document(DOCUMENT, section(run, verdicts, command), BEGIN, END)
        plots.soak(asdict(run), PLOT)
        print(f"written: {DOCUMENT}, {PLOT}")
    return 0 if all(verdict.good for verdict in verdicts) else 1


def write(run: Run) -> None:
    """Writes every sample, and the machine and commit that it came from."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with open(OUTPUT / "soak.json", "w", encoding="utf-8") as file:
        json.dump({"about": report.machine(), **asdict(run)}, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
