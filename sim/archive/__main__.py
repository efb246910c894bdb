"""Simulated brokers with a tiered topic: ``python -m sim.archive --histories 100``."""

from __future__ import annotations

import argparse
import sys

from sim.archive import shared_planted
from sim.archive.history import TieredHistory, play
from sim.archive.planted import PLANTED, hunt
from sim.archive.shared_history import SharedHistory
from sim.brokers.history import Counts
from sim.brokers.report import quiet


def main() -> int:
    """Play histories, or hunt the planted bugs; 1 if something was found, or a planted bug was not."""
    parser = argparse.ArgumentParser(prog="python -m sim.archive", description=__doc__)
    parser.add_argument("--histories", type=int, default=100, help="histories to play (default: 100)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed to begin with (default: 0)")
    parser.add_argument("--seed", type=int, help="play this seed alone, with the brokers' log lines")
    parser.add_argument("--shared", action="store_true", help="two shared topics in the place of a tiered one")
    parser.add_argument("--planted", action="store_true", help="plant each known bug and show how fast it is found")
    options = parser.parse_args()
    make = SharedHistory if options.shared else TieredHistory
    out, counts, missed = sys.stdout.write, Counts(), 0
    if options.seed is not None:
        play(options.seed, counts, make=make)
    elif options.planted:
        with quiet():
            bugs, look = (shared_planted.PLANTED, shared_planted.hunt) if options.shared else (PLANTED, hunt)
            for bug in bugs:
                found = look(bug)
                missed += found.finding is None
                by = "NOT FOUND" if found.finding is None else found.finding.what.partition(":")[0]
                out(f"{bug.name:55} {by:10} {found.counts.histories:>4} of {bug.histories} histories\n")
                sys.stdout.flush()
        return 1 if missed else 0
    else:
        with quiet():
            for seed in range(options.first_seed, options.first_seed + options.histories):
                play(seed, counts, make=make)
    for finding in counts.findings:
        out(f"seed {finding.seed}: {finding.what}\nsetting: {finding.setting}\n{finding.trace}\n")
    out(
        f"{counts.histories} histories, {counts.hours:.2f} simulated hours, {counts.steps} steps, "
        f"{counts.cpu_s:.0f} s of CPU, {len(counts.findings)} findings\n"
    )
    for title, found in (("faults", counts.faults), ("events", counts.seen)):
        out(f"{title}: " + ", ".join(f"{what} {count}" for what, count in found.most_common()) + "\n")
    return 1 if counts.findings else 0


if __name__ == "__main__":
    sys.exit(main())
