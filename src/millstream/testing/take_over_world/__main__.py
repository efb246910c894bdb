"""Simulated take-overs from the object store: ``python -m millstream.testing.take_over_world --histories 100``."""

from __future__ import annotations

import sys

from millstream.testing.histories import main
from millstream.testing.take_over_world.planted import PLANTED
from millstream.testing.take_over_world.world import play

if __name__ == "__main__":
    sys.exit(main("millstream.testing.take_over_world", __doc__, play, PLANTED))
