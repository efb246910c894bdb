"""The controller's snapshots between simulated brokers, as `app.controller_part` wires them.

::

    Snapshots ──trims──► log of group 0 (no command is kept that a snapshot has)
    a broker that was away ◄─files of the log, pieces of the snapshot─ leader ──► the broker starts again with both

It starts again after a power failure, which is harder than the orderly stop of a real broker. Its state
after the start is the one that the others had at that revision (E1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.cluster.controller_install import ControllerInstall, SnapshotSource
from millstream.core.controller.state import state_hash
from millstream.format.names import partition_directory
from millstream.model.quantities import RaftGroupId
from sim.engine.local_storage import DATA_DIR
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.cluster.snapshots import Snapshots
    from millstream.cluster.state_files import SnapshotStore
    from millstream.core.controller.state import TopicState
    from millstream.storage.log.importing import StagedFiles
    from millstream.storage.log.log import Log
    from sim.brokers.controlled import ControlledBroker


def exchange_snapshots(broker: ControlledBroker, snapshots: Snapshots, store: SnapshotStore) -> None:
    """Let a broker whose controller is open serve its snapshot, and receive one if its log is behind."""
    cluster, shard, group, seen = broker.cluster, broker.shard, broker.controller_group, broker.cluster.history.seen
    assert shard is not None
    life = broker.life

    def suspend() -> int:
        snapshots.freeze()
        broker.controller.commands.stop()
        broker.raft.close(group)
        return broker.controller.commands.next_offset

    def adopt(log: Log, files: StagedFiles, done: Callable[[], None]) -> None:
        broker.replaces_files(group, files)
        shard.storage.adopt_log(log, files.directory, files.end, files.end_offset, done)

    def begin_anew(_: str) -> None:
        seen["controller's snapshot received"] += 1
        cluster.after(0, again)

    def again() -> None:
        if broker.life == life and broker.is_up:
            broker.crash()
            broker.start()

    def make_new(topic: TopicState, index: int) -> str:
        """Where an empty log is about to be made, unless there is one. What a broker removes, it notes first."""
        directory = partition_directory(DATA_DIR, topic.topic_id, index)
        if broker.cache.state.exists and not broker.has_files(topic.topic_id, index):
            cluster.history_of(RaftGroupId(topic.partitions[index].raft_group)).depart(broker.replica)
        return directory

    calls: Any = broker.network
    SnapshotSource(calls, broker.disk, DATA_DIR)
    ControllerInstall(
        shard.context.reactor,
        group,
        calls,
        broker.disk,
        DATA_DIR,
        store,
        suspend,
        adopt,
        begin_anew,
        lambda: broker.cache.state,
        make_new,
    )


def check_state(broker: ControlledBroker) -> None:
    """Check the state that a broker comes up with against those that others had at its revision (E1)."""
    state = broker.cache.state
    mine = state_hash(state)
    if broker.cluster.state_hashes.setdefault(state.revision, mine) != mine:
        raise Violation(f"E1: {broker.replica} comes up with another state at revision {state.revision}")


class WithoutOwnTopics:
    """A disk on which the topics that the simulation made itself, without the controller, are not seen."""

    def __init__(self, disk: Any, own: frozenset[str]) -> None:
        self._disk = disk
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def list(self, directory: str) -> list[str]:
        """As `storage.disk.Disk`."""
        return [name for name in self._disk.list(directory) if name not in self._own]
