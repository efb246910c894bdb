"""A world of brokers for one test; what leaks from it fails the test."""

import pytest
from peer_nodes import World


@pytest.fixture
def world():
    world = World()
    yield world
    world.close()
