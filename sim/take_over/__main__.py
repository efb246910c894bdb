"""Simulated take-overs from the object store: ``python -m sim.take_over --histories 100``."""

from __future__ import annotations

import sys

from sim.engine.histories import main
from sim.take_over.planted import PLANTED
from sim.take_over.world import play

if __name__ == "__main__":
    sys.exit(main("sim.take_over", __doc__, play, PLANTED))
