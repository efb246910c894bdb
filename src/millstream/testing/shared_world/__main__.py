"""Simulated brokers with shared storage: ``python -m millstream.testing.shared_world --histories 100``."""

from __future__ import annotations

import sys

from millstream.testing.histories import main
from millstream.testing.shared_world.planted import PLANTED
from millstream.testing.shared_world.world import play

if __name__ == "__main__":
    sys.exit(main("millstream.testing.shared_world", __doc__, play, PLANTED))
