"""The memory that shards share, for one test."""

import pytest
from shard_pair import hush

from millstream.shard.mesh import Mesh


@pytest.fixture
def mesh_of():
    """Meshes of so many shards, whose bells are closed when the test ends."""
    made = []
    yield lambda shards: made.append(Mesh(shards)) or made[-1]
    for mesh in made:
        hush(mesh)
