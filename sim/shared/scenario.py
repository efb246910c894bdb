"""Brokers with shared topics, as the command line plays them."""

from sim.engine.command import Scenario
from sim.shared.history import play
from sim.shared.planted import PLANTED, hunt

SCENARIO = Scenario("Brokers with two shared topics, over an object store that fails.", play, PLANTED, hunt)
