"""Brokers with a tiered topic, as the command line plays them."""

from sim.archive.history import play
from sim.archive.planted import PLANTED, hunt
from sim.engine.command import Scenario

SCENARIO = Scenario("Brokers with a tiered topic, over an object store that fails.", play, PLANTED, hunt)
