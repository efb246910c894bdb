"""``python -m sim.pairs`` is ``python -m sim pairs``."""

import sys

from sim.engine.command import main
from sim.pairs.scenario import SCENARIO

if __name__ == "__main__":
    sys.exit(main("pairs", SCENARIO, sys.argv[1:]))
