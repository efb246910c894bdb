"""Loads the cluster's state from a data directory, as every shard starts with it.

Called once, after recovery and before the fork, so that all shards start with the same state and placement, and share
their memory.
"""

import msgspec

from millstream.cluster.placement import Placement, load_placement
from millstream.cluster.state_files import load_committed, load_state
from millstream.config.settings import Settings
from millstream.core.controller.state import ControllerState
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.storage.disk import Disk


class LoadedCluster(msgspec.Struct, frozen=True):
    """State and placement. Each shard copies the parts that it changes."""

    state: ControllerState
    placement: Placement


def load_cluster(disk: Disk, settings: Settings) -> LoadedCluster:
    """Load the state in ``settings.data_dir``. An empty directory gives a state without a cluster.

    A broker of a cluster starts with its snapshot, and with what it has noted as committed. What the log holds beyond
    that may not be committed: its commit is applied when the group tells it.

    Raises:
        Rejected: the directory belongs to a broker with another node id.
        Corruption: stored bytes are damaged.
        OSError: the directory cannot be read.
    """
    if settings.seeds:
        state = load_committed(disk, settings.data_dir)
        return LoadedCluster(state, load_placement(disk, settings.data_dir, settings.shards, state, settings.node_id))
    state, _ = load_state(disk, settings.data_dir)
    if state.exists and state.first_node != settings.node_id:
        raise Rejected(
            f"{settings.data_dir} belongs to the broker with node.id {state.first_node}, not {settings.node_id}; "
            "give this broker a directory of its own, or that id",
            ErrorCode.INVALID_CONFIG,
        )
    return LoadedCluster(state, load_placement(disk, settings.data_dir, settings.shards, state, settings.node_id))
