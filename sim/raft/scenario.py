"""Clusters of Raft cores alone, as the command line plays them."""

from sim.engine.command import Scenario
from sim.raft.history import play
from sim.raft.planted import PLANTED, hunt

SCENARIO = Scenario("Clusters of Raft cores alone, over a network and disks that fail.", play, PLANTED, hunt, hours=1.0)
