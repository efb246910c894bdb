"""Transactions between unruly clients, as the command line plays them."""

from sim.engine.command import Scenario
from sim.transactions.planted import PLANTED, hunt
from sim.transactions.world import play

SCENARIO = Scenario("The cores of transactions between unruly clients.", play, PLANTED, hunt)
