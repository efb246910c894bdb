"""Removes files of deleted topics after a crash: the deletion is durable in the controller's log, but the files are
still there.

Recovery runs it after a crash, before anything is served. The directory of a topic that the controller does not know is
removed if the controller's log says that the topic was deleted. Its name goes first, durably, so that a crash in the
middle leaves nothing that looks like a topic. Before that, the topic is marked for the removal of what it may have in
the object store, if the broker ``archives`` (`tiers.purging`). An unknown directory (because the controller's files
came from a backup, or its log is damaged where a snapshot has its state) stays and is logged, for a person to decide.

In a cluster only what the broker has noted as committed counts (`cluster.committed_mark`): any later deletion may be
taken back, and a directory that is unknown up to there may belong to a topic that comes later in the log.
"""

from millstream.cluster.committed_mark import read_mark
from millstream.cluster.state_files import deleted_topics, load_state
from millstream.errors import Corruption
from millstream.format.names import DELETED_SUFFIX, TOPICS_DIRECTORY
from millstream.storage.disk import Disk
from millstream.storage.segments.files import remove_deleted
from millstream.telemetry.log import log
from millstream.tiers.purging import mark


def remove_stale_topics(disk: Disk, data_dir: str, *, in_cluster: bool = False, archives: bool = False) -> None:
    """Complete the deletions that a crash interrupted. ``in_cluster``: the controller's log is replicated.

    Raises:
        OSError: the disk failed.
        Corruption: the controller's state cannot be read.
    """
    root = f"{data_dir}/{TOPICS_DIRECTORY}"
    try:
        names = disk.list(root)
    except FileNotFoundError:
        return
    strays = [name for name in names if not name.endswith(DELETED_SUFFIX)]
    if not in_cluster:
        state, _ = load_state(disk, data_dir)
        strays = [name for name in strays if _id_of(name) not in state.topics_by_id]
    deleted: set[bytes] = set()
    try:
        if strays and in_cluster:
            deleted = deleted_topics(disk, data_dir, read_mark(disk, data_dir))
        elif strays:
            deleted = deleted_topics(disk, data_dir)
    except Corruption as error:
        log.error("which topics were deleted is not known any more: %s", error.message)
    gone = [name for name in names if name.endswith(DELETED_SUFFIX)]
    for name in strays:
        if _id_of(name) in deleted:
            if archives:
                mark(disk, data_dir, name)
            disk.rename(f"{root}/{name}", f"{root}/{name}{DELETED_SUFFIX}")
            gone.append(f"{name}{DELETED_SUFFIX}")
        elif not in_cluster:
            log.warning("%s/%s belongs to no topic of this cluster; it is left as it is", root, name)
    if not gone:
        return
    disk.sync_directory(root)
    for name in gone:
        _remove_topic(disk, f"{root}/{name}")
    disk.sync_directory(root)


def _remove_topic(disk: Disk, directory: str) -> None:
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        try:
            remove_deleted(disk, path)
        except NotADirectoryError:
            disk.unlink(path)
    disk.remove_directory(directory)


def _id_of(name: str) -> bytes:
    try:
        return bytes.fromhex(name)
    except ValueError:
        return b""
