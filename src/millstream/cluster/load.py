"""The cluster as the files of a data directory have it: what every shard starts from.

Called once, after recovery and before the shards are forked, so that all of them begin with the same state and the same
placement (and share the pages that hold it).
"""

import msgspec

from millstream.cluster.placement import Placement, load_placement
from millstream.cluster.state_files import load_state
from millstream.config.settings import Settings
from millstream.core.controller.state import ControllerState
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.storage.disk import Disk


class LoadedCluster(msgspec.Struct, frozen=True):
    """State and placement. Each holder takes a copy of what it changes."""

    state: ControllerState
    placement: Placement


def load_cluster(disk: Disk, settings: Settings) -> LoadedCluster:
    """Load what ``settings.data_dir`` holds; an empty directory gives a state without a cluster.

    Raises:
        Rejected: the directory belongs to a broker with another node id.
        Corruption: what is stored is not what was written.
        OSError: it cannot be read.
    """
    state, _ = load_state(disk, settings.data_dir)
    if state.exists and state.first_node != settings.node_id:
        raise Rejected(
            f"{settings.data_dir} belongs to the broker with node.id {state.first_node}, not {settings.node_id}; "
            "give this broker a directory of its own, or that id",
            ErrorCode.INVALID_CONFIG,
        )
    return LoadedCluster(state, load_placement(disk, settings.data_dir, settings.shards, state))
