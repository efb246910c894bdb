"""Play every pair: ``python -m sim.pairs``. What is done is noted in a directory, where the next run continues."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from multiprocessing import Process

from sim.pairs.campaign import Shard, play_all, results, run_shard, sample
from sim.pairs.history import Pair, every_pair, play
from sim.pairs.operations import is_known
from sim.pairs.planted import PLANTED, hunt


def main() -> int:
    """Play all pairs, a sample, or one; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m sim.pairs", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the histories (default: 0)")
    parser.add_argument("--shards", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--state", default="build/pairs", help="where it is noted what is done (default: build/pairs)")
    parser.add_argument("--sample", action="store_true", help="play a drawn sample in this process")
    parser.add_argument("--pair", nargs=3, metavar=("KIND", "FIRST", "SECOND"), help="play this pair alone")
    parser.add_argument("--planted", action="store_true", help="plant each known bug and show how fast it is found")
    options = parser.parse_args()
    out = sys.stdout.write
    seen: Counter[str] = Counter()
    if options.planted:
        return _planted()
    if options.pair:
        finding = play(Pair(*options.pair), options.seed, seen)
        out(f"{dict(seen)}\n" if finding is None else f"{finding.what}\n{finding.trace}\n")
        return int(finding is not None)
    if options.sample:
        findings = list(play_all(sample(options.seed), options.seed, seen))
        for finding in findings:
            known = "known: " if is_known(finding.pair[1:], finding.what) else ""
            out(f"{known}{'; '.join(finding.pair)}: {finding.what}\n")
        out(f"{seen['histories']} histories, {len(findings)} findings\n")
        return int(bool(findings))
    return _all(options.seed, options.shards, options.state)


def _planted() -> int:
    missed = 0
    for bug in PLANTED:
        found = hunt(bug)
        missed += found.finding is None
        by = "NOT FOUND" if found.finding is None else "; ".join(found.finding.pair)
        sys.stdout.write(f"{bug.name:60} {found.histories:>4} of {bug.histories} histories  {by}\n")
        sys.stdout.flush()
    return int(missed > 0)


def _all(seed: int, shards: int, state: str) -> int:
    os.makedirs(state, exist_ok=True)
    paths = [f"{state}/seed-{seed}-{number}-of-{shards}.jsonl" for number in range(shards)]
    parts = [Process(target=run_shard, args=(Shard(number, shards, seed), path)) for number, path in enumerate(paths)]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    played = results(paths)
    refused = Counter(f"{pair.kind}: {name}" for pair, _, names, _ in played for name in names)
    for name, count in sorted(refused.items()):
        sys.stdout.write(f"{name} ({count})\n")
    findings = [(pair, what) for pair, what, _, _ in played if what is not None]
    for pair, what in findings:
        found = "known" if is_known(pair[1:], what) else "FOUND"
        sys.stdout.write(f"{found} {'; '.join(pair)}: {what}\n")
    cpu_s = sum(one[3] for one in played)
    sys.stdout.write(
        f"{len(played)} of {len(every_pair())} histories of seed {seed}, {cpu_s:.0f} s of CPU, "
        f"{len(findings)} findings\n"
    )
    return int(bool(findings) or len(played) < len(every_pair()))


if __name__ == "__main__":
    sys.exit(main())
