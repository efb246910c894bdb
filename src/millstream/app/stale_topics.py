"""Removes files of deleted topics after a crash: the deletion is durable in the controller's log, but the files are
still there.

Recovery runs it after a crash, before anything is served. The directory of a topic that the controller does not know is
removed if the controller's log says that the topic was deleted. Its name goes first, durably, so that a crash in the
middle leaves nothing that looks like a topic. Before that, the topic is marked for the removal of what it may have in
the object store, if the broker ``archives`` (`tiers.purging`). An unknown directory (because the controller's files
came from a backup, or its log is damaged where a snapshot has its state) stays and is logged, for a person to decide.

In a cluster only what the broker has noted as committed counts (`cluster.revision_marks`): any later deletion may be
taken back, and a directory that is unknown up to there may belong to a topic that comes later in the log. After the
snapshot of another broker was received the state has everything that this broker ever knew: what is unknown then was
deleted since.

`remove_left_partitions` does the same for partitions that moved to other brokers. It runs after an orderly stop, too:
the stop may come after a command is noted and before its shards have carried it out, and a partition that comes back
must not find files of before. A directory of a topic that exists is removed, with what was received of it, if neither
the state nor the log after it, committed or not, gives the partition to this broker: it makes files for a partition
only when the command for that is in its log, so no replica that exists is ever taken for one that left. Nothing is
removed if the log does not reach what the broker has noted as committed, because the rest may say otherwise.
"""

from collections.abc import Iterable

from millstream.cluster.revision_marks import read_mark, read_note, remove_note
from millstream.cluster.state_files import deleted_topics, groups_in_log, load_snapshot, load_state, look_at_groups
from millstream.errors import Corruption
from millstream.format.events.chunk import partition_directory_name
from millstream.format.names import DELETED_SUFFIX, TOPICS_DIRECTORY, quarantine_elsewhere, resumable
from millstream.model.events import PartitionIndex
from millstream.storage.disk import Disk, remove_file
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
        strays = [name for name in strays if _id_of(name) not in state.topics.by_id]
    deleted: set[bytes] = set()
    try:
        if strays and in_cluster and _is_outdated(disk, data_dir):
            known = {topic.topic_id for topic, _ in groups_in_log(disk, data_dir).values()}
            deleted = {_id_of(name) for name in strays} - known - {b""}
        elif strays and in_cluster:
            deleted = deleted_topics(disk, data_dir, read_mark(disk, data_dir))
        elif strays:
            deleted = deleted_topics(disk, data_dir)
    except Corruption as error:
        log.error("the list of deleted topics is lost: %s", error.message)
    gone = [name for name in names if name.endswith(DELETED_SUFFIX)]
    for name in strays:
        if _id_of(name) in deleted:
            if archives:
                mark(disk, data_dir, name)
            _forget_set_aside(disk, [f"{root}/{name}/{partition}" for partition in disk.list(f"{root}/{name}")])
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


def remove_left_partitions(disk: Disk, data_dir: str, node: int) -> None:
    """Complete the removals of partitions that other brokers hold now, which a crash interrupted, or which broker
    ``node`` did not learn of in time.

    Raises:
        OSError: the disk failed.
        Corruption: the controller's state cannot be read.
    """
    root = f"{data_dir}/{TOPICS_DIRECTORY}"
    try:
        names = set(disk.list(root))
    except FileNotFoundError:
        return
    known = look_at_groups(disk, data_dir, node)
    if not known.is_complete:
        log.warning("files of partitions that other brokers may hold stay: the controller's log here is incomplete")
        return
    held = {(topic.topic_id, index) for topic, index in known.held.values()}
    by_topic: dict[bytes, list[str]] = {}
    for topic, index in known.groups.values():
        if (topic.topic_id, index) not in held and topic.topic_id.hex() in names:
            events = partition_directory_name(topic.name, topic.topic_id, PartitionIndex(index))
            by_topic.setdefault(topic.topic_id, []).extend((str(index), events))
    for topic_id, left in by_topic.items():
        directory = f"{root}/{topic_id.hex()}"
        there = set(disk.list(directory))
        partial = {name for name in there if resumable(name) and name.partition(".")[0] in left}
        for name in sorted(there.intersection(left) | partial):
            log.info("%s/%s is removed: other brokers hold this partition now", directory, name)
            remove_deleted(disk, f"{directory}/{name}")
        disk.sync_directory(directory)
        _forget_set_aside(disk, [f"{directory}/{name}" for name in left])


def _forget_set_aside(disk: Disk, directories: Iterable[str]) -> None:
    """Remove what was set aside elsewhere of partitions that are removed."""
    for path in map(quarantine_elsewhere, directories):
        remove_file(disk, path)


def forget_note(disk: Disk, data_dir: str) -> None:
    """What another broker's snapshot made outdated is deleted. Raises OSError."""
    if _is_outdated(disk, data_dir):
        remove_note(disk, data_dir)


def _is_outdated(disk: Disk, data_dir: str) -> bool:
    """Whether the state is that of a snapshot that was received."""
    noted = read_note(disk, data_dir)
    return noted is not None and load_snapshot(disk, data_dir).revision >= noted


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
