"""What shared topics cost: producers beside a cold read of everything, catch-up, requests to the store, a lost disk.

    make bench-shared [ARGS="--history 384 --seconds 20 --rate 10240 --write-docs"]

One broker with one shard and 256 MiB of memory, over a store that answers like a cloud's (`bench.slow_store`). A shared
topic is filled, and everything of it goes to the store; then the broker is restarted, so that nothing of it is in
memory. The scheduled load runs on another shared topic alone, and again while all of the first one is read from the
store. The goal is a p99 of at most 1.5 times that without the reader. At the end the broker is killed and its disk
wiped: the time from its start until `tier recover` is done and the first record of the topic was read is the
take-over. Everything is read back and checked, before the disk is lost and after.

Exit code 0: everything was measured. Figures go to ``.cache/bench/shared.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import fetch_load, load, plain, raw, report, schedule, verify
from bench.raw import UnexpectedAnswer
from bench.warm_arm import metrics
from millstream.testing.process import Broker

if TYPE_CHECKING:
    from bench.meter import Outcome

GOAL = 1.5
PATIENCE_S = 300
PARTITIONS = 4
OUTPUT = Path(".cache/bench")
DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- shared: written by make bench-shared -->", "<!-- end of shared -->"
SHARED = {"storage.mode": "shared", "retention.ms": "-1"}
_MIB = 1 << 20

Figures = dict[str, float]


def _tiers(broker: Broker, topic: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{broker.http}/v1/tiers?topic={topic}", timeout=60) as answer:
        return json.load(answer)


def _await_uploads(broker: Broker, topic: str) -> None:
    """Wait until the disk has nothing of the topic."""
    end_s = time.monotonic() + PATIENCE_S
    while not all(
        one["archived_end_offset"] == one["high_watermark"] == one["local_start_offset"]
        for one in _tiers(broker, topic)["partitions"]
    ):
        if time.monotonic() > end_s:
            raise UnexpectedAnswer(f"after {PATIENCE_S} s the disk still has records of {topic}")
        time.sleep(0.2)


def _on_schedule(broker: Broker, topic: str, rate: float, seconds: float) -> tuple[Outcome, verify.Produced]:
    with raw.Caller(broker.bootstrap) as caller:
        caller.create_topics({topic: schedule.RFC.partitions}, SHARED)
    acknowledged = load.fresh(schedule.RFC.partitions)
    outcome = schedule.produce_open(
        broker.bootstrap,
        broker.pid,
        topic,
        plain.content(1),
        schedule.Schedule(rate),
        warm_s=4.0,
        measured_s=seconds,
        acknowledged=acknowledged,
    )
    return outcome, verify.Produced(topic, acknowledged, 1, frozenset(load.checksums(plain.content(1))))


def _fill(broker: Broker, topic: str, size_bytes: int) -> verify.Produced:
    with raw.Caller(broker.bootstrap) as caller:
        caller.create_topics({topic: PARTITIONS}, SHARED)
    _, produced = load.produce_closed(
        broker.bootstrap,
        broker.pid,
        topic,
        plain.content(128),
        connections=4,
        depth=4,
        partitions=PARTITIONS,
        records_a_batch=128,
        warm_s=0.0,
        measured_s=PATIENCE_S,
        limit_bytes=size_bytes,
    )
    return produced


def _per_gib(broker: Broker, topic: str) -> Figures:
    """Requests and bytes of the broker since its start, for each GiB that the topic has in the store."""
    found = _tiers(broker, topic)
    gib = sum(one["archived_bytes"] for one in found["partitions"]) / (1 << 30)
    requests = {one["operation"]: one for one in found["requests"]}
    figures = {f"{name} requests a GiB": one["count"] / gib for name, one in requests.items()}
    return figures | {f"{name} GiB a GiB": requests[name]["bytes"] / (1 << 30) / gib for name in ("put", "get")}


def _take_over(broker: Broker, produced: verify.Produced) -> float:
    """Seconds from the start on an empty disk until the topic's first record was read."""
    broker.kill()
    shutil.rmtree(broker.data_dir)
    broker.data_dir.mkdir()
    begun_s = time.monotonic()
    broker.start()
    command = [sys.executable, "-m", "millstream.cli", "tier", "recover", "--json", "--bootstrap", broker.bootstrap]
    done = subprocess.run([*command, produced.topic], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnexpectedAnswer(f"{produced.topic} is not recovered: {done.stdout} {done.stderr}")
    request, _ = raw.fetch(produced.topic, 0, 1 << 20)
    while True:
        try:
            with raw.Caller(broker.bootstrap) as caller:
                if len(caller.call(request)) > 1024:
                    return time.monotonic() - begun_s
        except (OSError, UnexpectedAnswer):
            pass  # its leader is being elected
        if time.monotonic() > begun_s + PATIENCE_S:
            raise UnexpectedAnswer(f"nothing of {produced.topic} was read within {PATIENCE_S} s")
        time.sleep(0.05)


def measure(history_mib: int, seconds: float, rate: float, bucket: str) -> Figures:
    """Raises UnexpectedAnswer if anything that is read is wrong, or takes longer than `PATIENCE_S`."""
    settings: dict[str, object] = {
        "objects.url": f"file://{bucket}",
        "log.retention.check.interval.ms": 500,
        "checkpoint.ms": 1000,
        "internal.shard.hook": "bench.slow_store:install",
    }
    with Broker(settings=settings, shards=1, memory="256MiB") as broker:
        produced = _fill(broker, "history", history_mib * _MIB)
        _await_uploads(broker, "history")
        figures = _per_gib(broker, "history")
        broker.stop()
        broker.start()  # nothing of it is in memory any more
        alone, first = _on_schedule(broker, "load", rate, seconds)
        before = metrics(broker).value("millstream_read_bytes_total", source="archive")
        size = len(plain.content(128)[0])
        with fetch_load.beside(
            broker.bootstrap, broker.pid, produced, batch_bytes=size, seconds=seconds + 3.0
        ) as reader:
            loaded, second = _on_schedule(broker, "load-2", rate, seconds)
            read = reader.result(PATIENCE_S)
        archived = metrics(broker).value("millstream_read_bytes_total", source="archive") - before
        if archived < 0.5 * read["bytes"]:
            raise UnexpectedAnswer(f"of {read['bytes']:,} bytes read, only {archived:,.0f} came from the store")
        for one in (produced, first, second):
            verify.read_back(broker.bootstrap, one)
        take_over_s = _take_over(broker, produced)
        verify.read_back(broker.bootstrap, produced)
    alone_ms, loaded_ms = alone.percentile_us(99) / 1000, loaded.percentile_us(99) / 1000
    return {
        "produce p99 alone, ms": alone_ms,
        "produce p99 beside the cold read, ms": loaded_ms,
        "ratio of both": loaded_ms / alone_ms,
        "catch-up, MiB/s": read["bytes"] / read["seconds"] / _MIB,
        "fetch p99 of the cold read, ms": read["p99_ms"],
        "take-over after a lost disk, s": take_over_s,
        **figures,
    }


def main() -> int:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.shared_storage", description="What shared topics cost.")
    parser.add_argument("--history", type=int, default=384, metavar="MIB", help="MiB that are read cold (default 384)")
    parser.add_argument("--seconds", type=float, default=20.0, help="each measured part of the load (default 20)")
    parser.add_argument("--rate", type=float, default=10_240.0, help="requests a second (default 10240)")
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into {DOCUMENT.name}")
    options = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    bucket = OUTPUT.absolute() / "shared-bucket"
    shutil.rmtree(bucket, ignore_errors=True)
    try:
        figures = measure(options.history, options.seconds, options.rate, str(bucket))
    finally:
        shutil.rmtree(bucket, ignore_errors=True)
    (OUTPUT / "shared.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    machine = ", ".join(f"{name} {value}" for name, value in report.machine().items())
    ratio = figures["ratio of both"]
    lines = [
        f"Measured: {machine}.",
        "",
        f"    python -m bench.shared_storage {' '.join(sys.argv[1:])}",
        "",
        "| Shared topics | |",
        "|---|---:|",
        *(f"| {name} | {value:,.2f} |" for name, value in figures.items()),
        "",
        f"p99 beside the read is {ratio:.2f} times that alone, goal ≤ {GOAL}: {'met' if ratio <= GOAL else 'missed'}.",
    ]
    text = "\n".join(lines) + "\n"
    if options.write_docs:
        report.write_document(DOCUMENT, text, BEGIN, END)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
