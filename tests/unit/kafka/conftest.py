import sys

import pytest


@pytest.fixture(autouse=True)
def _close_worlds():
    """The control plane's test worlds hold descriptors."""
    yield
    cluster_world = sys.modules.get("cluster_world")
    for world in list(cluster_world.open_worlds) if cluster_world else ():
        world.close()
