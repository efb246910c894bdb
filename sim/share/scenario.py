"""A share partition between unruly members, as the command line plays it."""

from sim.engine.command import Scenario
from sim.share.planted import PLANTED, hunt
from sim.share.world import play

SCENARIO = Scenario("A share partition and the coordinator of its state, between unruly members.", play, PLANTED, hunt)
