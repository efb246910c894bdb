"""All pairs, as the command line plays them. What is done is noted in a directory, where the next run continues."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections import Counter
from multiprocessing import Process
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final

from sim.engine.command import Scenario, tell
from sim.pairs.campaign import Shard, play_all, results, run_shard, sample
from sim.pairs.history import Pair, every_pair, play
from sim.pairs.planted import PLANTED, hunt

if TYPE_CHECKING:
    from sim.engine.histories import Counts, Finding

_TELL_S: Final = 10.0
"""Seconds between two lines that say how far a run is."""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shards", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--state", default="build/pairs", help="where it is noted what is done (default: build/pairs)")
    parser.add_argument("--sample", action="store_true", help="play a drawn sample in this process")
    parser.add_argument("--pair", nargs=3, metavar=("KIND", "FIRST", "SECOND"), help="play this pair alone")


def _chosen(given: Any) -> Scenario | int:
    """Play all pairs, a sample, or one."""
    if given.planted:
        return SCENARIO
    seed, seen = given.seed or 0, Counter[str]()
    if given.pair:
        finding = play(Pair(*given.pair), seed, seen)
        tell(str(dict(seen)) if finding is None else f"{finding.what}\n{finding.trace}")
        return int(finding is not None)
    if given.sample:
        findings = list(play_all(sample(seed), seed, seen))
        for finding in findings:
            tell(f"{'; '.join(finding.setting)}: {finding.what}")
        tell(f"{seen['histories']} histories, {len(findings)} findings")
        return int(bool(findings))
    if given.minutes and given.seed is None:
        seed = int.from_bytes(os.urandom(4), "big")
    return _all(seed, given.shards, given.state, given.minutes)


def _all(seed: int, shards: int, state: str, minutes: float | None) -> int:
    """Play every pair, or as many as fit into so many minutes."""
    os.makedirs(state, exist_ok=True)
    end_s = time.monotonic() + minutes * 60 if minutes else math.inf
    every = len(every_pair())
    paths = [f"{state}/seed-{seed}-{number}-of-{shards}.jsonl" for number in range(shards)]
    parts = [
        Process(target=run_shard, args=(Shard(number, shards, seed), path, end_s)) for number, path in enumerate(paths)
    ]
    for part in parts:
        part.start()
    told = 0
    while any(part.is_alive() for part in parts):
        wait([part.sentinel for part in parts if part.is_alive()], _TELL_S)
        played = results(paths)
        found = [(pair, what) for pair, what, _, _ in played if what is not None]
        for pair, what in found[told:]:
            tell(f"FOUND {'; '.join(pair)}: {what}")
        told = len(found)
        tell(f"{len(played)} of {every} histories of seed {seed}, {told} findings")
    played = results(paths)
    refused = Counter(f"{pair.kind}: {name}" for pair, _, names, _ in played for name in names)
    for name, count in sorted(refused.items()):
        tell(f"{name} ({count})")
    findings = sum(what is not None for _, what, _, _ in played)
    cpu_s = sum(one[3] for one in played)
    tell(f"{len(played)} of {every} histories of seed {seed}, {cpu_s:.0f} s of CPU, {findings} findings")
    return int(bool(findings) or (minutes is None and len(played) < every))


def _never(_seed: int, _counts: Counts) -> Finding | None:
    raise AssertionError("pairs are played by shards")


SCENARIO: Final = Scenario(
    "Every kind of topic with every ordered pair of operations. A run resumes where the one before stopped.",
    _never,
    PLANTED,
    hunt,
    options=_options,
    chosen=_chosen,
)
