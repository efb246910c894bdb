"""Simulated brokers with shared storage: ``python -m sim.shared --histories 100``."""

from __future__ import annotations

import sys

from sim.engine.histories import main
from sim.shared.planted import PLANTED
from sim.shared.world import play

if __name__ == "__main__":
    sys.exit(main("sim.shared", __doc__, play, PLANTED))
