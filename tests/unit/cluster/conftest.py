import pytest
from cluster_world import open_worlds


@pytest.fixture(autouse=True)
def _close_worlds():
    yield
    for world in list(open_worlds):
        world.close()
