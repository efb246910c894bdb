"""Opens this broker's part of the controller in a cluster: its replica of Raft group 0, and what is wired to it."""

from collections.abc import Callable
from functools import partial
from typing import Final

from millstream.app.peer_shard import PeerShard, registration
from millstream.app.shared import Shared
from millstream.cluster.controller_install import ControllerInstall, SnapshotSource
from millstream.cluster.follower import Follower
from millstream.cluster.leader_news import LeaderNews
from millstream.cluster.metadata import MetadataCache
from millstream.cluster.quorum_controller import QuorumController
from millstream.cluster.snapshots import KEPT_COMMANDS, LaggingLog, Snapshots
from millstream.cluster.state_files import SnapshotStore
from millstream.cluster.topic_table import resolved_config
from millstream.config.settings import Settings
from millstream.core.controller.state import TopicState
from millstream.format.events.chunk import log_directory
from millstream.model.events import PartitionIndex
from millstream.model.quantities import RaftGroupId
from millstream.shard.context import Shard
from millstream.storage.log.importing import StagedFiles
from millstream.storage.log.log import Log
from millstream.storage.shard_storage import ShardStorage

CONTROLLER_GROUP: Final = RaftGroupId(0)


def join_controller(
    shared: Shared,
    shard: Shard,
    storage: ShardStorage,
    metadata: MetadataCache,
    follower: Follower,
    peers: PeerShard,
    opened: Log,
    begin_anew: Callable[[str], None],
) -> QuorumController:
    """The controller on its shard; ``opened`` is the log of group 0. ``begin_anew`` stops this broker and starts it
    again.
    """
    assert shared.identity is not None
    settings, disk = shared.settings, shared.disk
    group = peers.raft.open(CONTROLLER_GROUP, opened, peers.founding_voters, tells_commits=True)
    store = SnapshotStore(disk, settings.data_dir)
    kept = 0 if settings.internal_controller_segment_bytes else KEPT_COMMANDS
    snapshots = Snapshots(
        shard.reactor,
        metadata,
        store,
        LaggingLog(opened, kept),
        disk,
        settings.data_dir,
        shared.cluster.placement,
        settings.controller_snapshot_ms * 1000,
    )
    controller = peers.controller = QuorumController(
        shard,
        group,
        peers.network,
        metadata,
        follower,
        shared.cluster.placement,
        snapshots,
        registration(shared, shared.identity),
        len(shared.identity.founders),
        peers.contacts if shared.identity.contacts else peers.registered(),
    )
    peers.news = LeaderNews(peers.network, metadata, follower)

    def suspend() -> int:
        snapshots.freeze()
        controller.commands.stop()
        peers.raft.close(group)
        return controller.commands.next_offset

    def adopt(log: Log, files: StagedFiles, done: Callable[[], None]) -> None:
        storage.adopt_log(log, files.directory, files.end, files.end_offset, done)

    calls = peers.network.calls
    SnapshotSource(calls, disk, settings.data_dir)
    ControllerInstall(
        shard.reactor,
        group,
        calls,
        disk,
        settings.data_dir,
        store,
        suspend,
        adopt,
        begin_anew,
        lambda: metadata.state,
        partial(_directory_of, settings),
    )
    return controller


def _directory_of(settings: Settings, topic: TopicState, index: int) -> str:
    """Where the files of a partition are on this broker, or will be."""
    events = resolved_config(topic.name, topic.configs, settings).has_events
    return log_directory(settings.data_dir, topic.topic_id, topic.name, PartitionIndex(index), events=events)
