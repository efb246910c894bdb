"""Simulated take-overs from the object store: ``python -m millstream.testing.take_over_world --histories 100``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import TYPE_CHECKING

from millstream.testing.take_over_world.planted import PLANTED, hunt
from millstream.testing.take_over_world.world import play

if TYPE_CHECKING:
    from millstream.testing.take_over_world.world import Finding


def main() -> int:
    """Play histories, or hunt the planted bugs; 1 if something was found, or a planted bug was not."""
    parser = argparse.ArgumentParser(prog="python -m millstream.testing.take_over_world", description=__doc__)
    parser.add_argument("--histories", type=int, default=100, help="histories to play (default: 100)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed to begin with (default: 0)")
    parser.add_argument("--planted", action="store_true", help="plant each known bug and show how fast it is found")
    options = parser.parse_args()
    out = sys.stdout.write
    if options.planted:
        missed = 0
        for bug in PLANTED:
            found = hunt(bug)
            missed += found.finding is None
            by = "NOT FOUND" if found.finding is None else found.finding.what.partition(":")[0]
            out(f"{bug.name:75} {by:10} {found.histories:>4} of {bug.histories} histories\n")
            sys.stdout.flush()
        return 1 if missed else 0
    seen: Counter[str] = Counter()
    findings: list[Finding] = []
    for seed in range(options.first_seed, options.first_seed + options.histories):
        finding = play(seed, seen)
        if finding is not None:
            findings.append(finding)
            out(f"seed {seed}: {finding.what}\n" + "\n".join(finding.trace) + "\n")
    counted = ", ".join(f"{what} {count}" for what, count in seen.most_common() if " " not in what or count > 3)
    out(f"{options.histories} histories: {counted}; {len(findings)} findings\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
