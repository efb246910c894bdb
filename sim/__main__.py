"""Run simulations: ``python -m sim SCENARIO``, as ``python -m sim brokers --hours 1`` or ``... raft --seed 17``.

Several scenarios take the same options, one after the other. ``python -m sim SCENARIO --help`` shows the options.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from sim.engine.command import main

SCENARIOS: Final = ("raft", "brokers", "storage", "archive", "shared", "take_over", "transactions", "share", "pairs")


def run(arguments: list[str]) -> int:
    """Run the scenarios that are named first; 1 if one found something, 2 if none is named."""
    named = 0
    while named < len(arguments) and arguments[named] in SCENARIOS:
        named += 1
    if not named:
        sys.stdout.write(f"{__doc__}\nScenarios: {', '.join(SCENARIOS)}\n")
        return 0 if arguments in (["--help"], ["-h"]) else 2
    return max(
        main(name, import_module(f"sim.{name}.scenario").SCENARIO, arguments[named:]) for name in arguments[:named]
    )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
