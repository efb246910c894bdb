"""Play fresh histories for as long as one likes: ``python -m sim.storage --minutes 60``.

Each seed is played three ways: with a power failure judged before every operation of the disk, with operations that
fail and disks that are full, and with damage to what was written. The last line says how much was judged and what that
cost; a failure is printed with the command that repeats it, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from millstream.telemetry.log import log as operator_log
from sim.storage.campaign import WAYS, Tally, play

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIRST_FRESH: Final = 1 << 20


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m sim.storage", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on (default: 1)")
    parser.add_argument("--seed", type=int, help="play this seed only")
    parser.add_argument("--way", choices=sorted(WAYS), action="append", help="only this way (may be given again)")
    parser.add_argument("--operations", type=int, default=80, help="operations of a history (default: 80)")
    given = parser.parse_args(arguments)
    sink = os.open(os.devnull, os.O_WRONLY)
    operator_log._process.fd = sink  # pyright: ignore[reportPrivateUsage]  # thousands of repairs, a line each
    ways = given.way or sorted(WAYS)
    first = _FIRST_FRESH + int.from_bytes(os.urandom(4), "big") if given.seed is None else given.seed
    deadline = time.monotonic() + given.minutes * 60
    tally = Tally()
    failures = 0
    seed = first
    while seed == first or (given.seed is None and time.monotonic() < deadline):
        for way in ways:
            failure = play(way, seed, given.operations, tally)
            if failure:
                failures += 1
                tell(f"FAILED: {failure}\n  repeat it: {parser.prog} --way {way} --seed {seed}")
        seed += 1
    tell(f"seeds {first} to {seed - 1}: {tally}")
    return 1 if failures else 0


def tell(line: str) -> None:
    """Print it at once, also into a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
