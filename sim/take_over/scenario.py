"""Take-overs from the object store, as the command line plays them."""

from sim.engine.command import Scenario
from sim.take_over.planted import PLANTED, hunt
from sim.take_over.world import play

SCENARIO = Scenario("Brokers that die while others take over what the object store has.", play, PLANTED, hunt)
