"""Jobs that have new objects in the place of archived segments: merge, reencode.

::

    manifest ──plan──► groups ──► Spark tasks, a group each ──objects──► store
                                       └──► journal: written ──► ReplaceSegments ──► journal: done

A wave of groups, one a task, is written; then the driver has them committed one after the other. The journal says of
each group what was written, before the leader is asked, and what became of it. Both are synced. Killed at any time and
started again, the job first repeats the requests without an answer, by their ids, and then plans what is left from the
newest manifests. No manifest names what a killed task has written; ``tier scrub --delete`` removes it.

A group that cannot be replaced, because retention has deleted a segment or another job was first, is left out and
counted. A leader that does not answer, or a store, ends the job; it continues when the same command runs again. A job
that has come to its end starts again the next time. At its end it waits until the manifest objects name what it wrote.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from millstream.client import Cluster
from millstream.client.replace_segments import replace_segments
from millstream.errors import MillstreamError, Rejected
from millstream.format.archive import manifest_key, part_key
from millstream.format.manifest import ArchivedSegment, ArchiveId, Manifest, decode_manifest, decode_part, unpack_run
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import FilePosition
from millstream.objects import ObjectKey, ObjectStore
from millstream.spark.jobs import JOB_FILE, begin_job, job_of
from millstream.spark.rewriting import Group, Rewritten, plan_merge, rewrite

SEGMENTS_MAX: Final = 128
"""Segments of one group: a request of `ReplaceSegments` names no more."""

MERGE: Final = "merge"
REENCODE: Final = "reencode"

_JOURNAL_FILE: Final = "replaced.jsonl"
_LEFT_OUT: Final = {
    ErrorCode.OFFSET_OUT_OF_RANGE: "retention has deleted a segment",
    ErrorCode.INVALID_UPDATE_VERSION: "another job was first",
    ErrorCode.INVALID_REQUEST: "the manifest has changed",
    ErrorCode.RESOURCE_NOT_FOUND: "the new object was removed, or is too old to be taken",
}
_MANIFEST_S: Final = 90.0
_PAUSE_S: Final = 0.5


class ReplacingJob(msgspec.Struct, frozen=True):
    """What a job does."""

    kind: str
    """``merge`` or ``reencode``."""

    topic: str
    target_bytes: int = 0
    codec: int = 0


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the journal: what was written, or what became of it."""

    id: uuid.UUID
    written: Rewritten | None = None
    expected_version: int = 0
    version: int = 0
    """Of the manifest after the replacement."""

    left_out: str = ""
    """Why it is not replaced."""


class Done(msgspec.Struct):
    """What a run did. Segments and bytes are those of groups that were replaced."""

    groups: int = 0
    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    batches: int = 0
    reencoded: int = 0
    left: int = 0
    """Batches that cannot be decompressed."""

    unchanged: int = 0
    """Segments that have the codec already."""

    left_out: dict[str, int] = {}
    """Groups that were not replaced, by reason."""

    manifests_late: int = 0
    """Partitions whose manifest object does not name the new segments yet."""

    def add(self, written: Rewritten) -> None:
        """A group was replaced."""
        assert written.after is not None, "only what was written is replaced"
        self.groups += 1
        self.segments_before += len(written.group.before)
        self.segments_after += 1
        self.bytes_before += written.group.size_bytes
        self.bytes_after += written.after.size_bytes
        self.batches += written.batches
        self.reencoded += written.reencoded
        self.left += written.left

    def leave_out(self, why: str) -> None:
        """A group was not replaced."""
        self.left_out[why] = self.left_out.get(why, 0) + 1


class Planned(msgspec.Struct):
    """What a job is going to do with one partition."""

    partition: int
    version: int
    """Of the manifest."""

    segments: int
    size_bytes: int
    groups: list[Group]


# -- the plan ----------------------------------------------------------------------------------------------------------


def read_manifest(store: ObjectStore, owner: ArchiveId) -> Manifest | None:
    """The manifest object of a partition; None if nothing of it is archived so far. Errors as of the store."""
    info = store.head(ObjectKey(manifest_key(owner)))
    if info is None:
        return None
    return decode_manifest(store.get(ObjectKey(manifest_key(owner)), FilePosition(0), FilePosition(info.size_bytes)))


def plan_partition(store: ObjectStore, owner: ArchiveId, job: ReplacingJob, versions: dict[int, int]) -> Planned:
    """What there is to do for a partition. ``versions`` are those that its manifest must have reached, by partition.

    Raises:
        Rejected: the manifest object is older than that, for too long.
        MillstreamError: of the store.
    """
    needed = versions.get(owner.partition_index, 0)
    manifest = _awaited(store, owner, needed)
    if manifest is None:
        if needed:
            raise Rejected(f"the manifest of partition {owner.partition_index} is missing in {store.url}")
        return Planned(owner.partition_index, 0, 0, 0, [])
    if manifest.version < needed:
        raise Rejected(
            f"the manifest of partition {owner.partition_index} in {store.url} is older than what the job has replaced:"
            " wait until the broker reaches the store, and run the same command again"
        )
    start = manifest.start_offset
    parts = [[one for one in part if one.end_offset > start] for part in _stretches(store, manifest)]
    found = [one for part in parts for one in part]
    if job.kind == MERGE:
        chosen = plan_merge(parts, job.target_bytes, SEGMENTS_MAX)
    else:
        chosen = [(one,) for one in found]
    groups = [Group(owner.topic_id.hex, owner.partition_index, one) for one in chosen]
    size = sum(one.size_bytes for one in found)
    return Planned(owner.partition_index, manifest.version, len(found), size, groups)


def plan(
    store: ObjectStore, topic_id: uuid.UUID, partitions: Sequence[int], job: ReplacingJob, versions: dict[int, int]
) -> list[Planned]:
    """`plan_partition` for each partition of the topic."""
    return [plan_partition(store, ArchiveId(topic_id, index), job, versions) for index in partitions]


def _stretches(store: ObjectStore, manifest: Manifest) -> Iterator[list[ArchivedSegment]]:
    """The segments of each part of the manifest, then those outside of parts."""
    for part in manifest.parts:
        key = ObjectKey(part_key(manifest.owner, part))
        info = store.head(key)
        if info is None:
            raise Rejected(f"{store.url} has no object {key}: the manifest has changed, run the same command again")
        data = store.get(key, FilePosition(0), FilePosition(info.size_bytes))
        yield [one for run in decode_part(manifest.owner, part, data) for one in unpack_run(run)]
    yield [one for run in manifest.runs for one in unpack_run(run)]


def _awaited(store: ObjectStore, owner: ArchiveId, version: int) -> Manifest | None:
    """The manifest object, once it has reached a version, or when too much time has passed."""
    end_s = time.monotonic() + _MANIFEST_S
    while True:
        manifest = read_manifest(store, owner)
        if version <= (0 if manifest is None else manifest.version) or time.monotonic() > end_s:
            return manifest
        time.sleep(_PAUSE_S)


# -- the journal -------------------------------------------------------------------------------------------------------


class Journal:
    """The lines of one job's directory. Lifecycle: opened when the job starts or continues; `end` when complete."""

    def __init__(self, directory: str, job: ReplacingJob) -> None:
        """Raises Rejected if the directory is that of another job."""
        self._directory = directory
        self._path = os.path.join(directory, _JOURNAL_FILE)
        known = job_of(directory, ReplacingJob)
        if known is None:
            begin_job(directory, job)
        elif known != job:
            raise Rejected(f"{directory} belongs to a job that does {_said(known)}: give this one another --id")
        self.pending: dict[uuid.UUID, Line] = {}
        """Requests without an answer."""
        self.versions: dict[int, int] = {}
        """The newest version of each partition's manifest that the job has made."""
        self.checked: set[Group] = set()
        """Groups with nothing to change."""
        for line in self._lines():
            self._take(line)

    def _lines(self) -> Iterator[Line]:
        if not os.path.exists(self._path):
            return
        with open(self._path, "rb+") as file:
            data = file.read()
            file.truncate(data.rfind(b"\n") + 1)  # a crash cut the last line off
        for line in data.splitlines(keepends=True):
            if line.endswith(b"\n"):
                try:
                    yield msgspec.json.decode(line, type=Line)
                except msgspec.MsgspecError as error:
                    raise Rejected(
                        f"{self._path} has a line that cannot be read; give this job another --id"
                    ) from error

    def _take(self, line: Line) -> None:
        if line.written is not None and line.written.after is not None:
            self.pending[line.id] = line
        elif line.written is not None:
            self.checked.add(line.written.group)
        else:
            asked = self.pending.pop(line.id, None)
            if asked is not None and asked.written is not None and line.version:
                self.versions[asked.written.group.partition] = line.version

    def note(self, lines: Sequence[Line]) -> None:
        """Write lines, durably."""
        with open(self._path, "ab") as file:
            file.write(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))
            file.flush()
            os.fsync(file.fileno())
        for line in lines:
            self._take(line)

    def end(self) -> None:
        """The job has come to its end: the next one of this directory starts again."""
        for name in (_JOURNAL_FILE, JOB_FILE):
            if os.path.exists(path := os.path.join(self._directory, name)):
                os.remove(path)


def _said(job: ReplacingJob) -> str:
    what = f" to {job.target_bytes:,} bytes" if job.kind == MERGE else f" with codec {job.codec}"
    return f"{job.kind} {job.topic}{what}"


# -- the job -----------------------------------------------------------------------------------------------------------


def settle_pending(cluster: Cluster, job: ReplacingJob, journal: Journal, done: Done) -> None:
    """Repeat the requests of an earlier run that have no answer. Raises Unavailable if the leader does not answer."""
    for line in list(journal.pending.values()):
        _commit(cluster, job, journal, line, done)


def _commit(cluster: Cluster, job: ReplacingJob, journal: Journal, line: Line, done: Done) -> int | ErrorCode:
    """The manifest's version after the replacement, or why the group is left out."""
    written = line.written
    assert written is not None and written.after is not None, "a pending line has an object"
    group = written.group
    try:
        version = replace_segments(
            cluster, job.topic, group.owner, line.id, line.expected_version, group.before, (written.after,)
        )
    except Rejected as error:
        if error.code not in _LEFT_OUT:
            raise
        why = _LEFT_OUT[error.code]
        journal.note([Line(line.id, left_out=why)])
        done.leave_out(why)
        return error.code
    journal.note([Line(line.id, version=version)])
    done.add(written)
    return version


class Rewriting(msgspec.Struct):
    """One run of a job. ``stopped`` is asked before each wave."""

    cluster: Cluster
    job: ReplacingJob
    journal: Journal
    url: str
    done: Done
    stopped: Callable[[], bool]

    def run(self, spark: SparkSession, plan: Sequence[Planned], advance: Callable[[int], None]) -> None:
        """Write and replace every group of the plan. ``advance`` counts bytes.

        Raises:
            MillstreamError: the store or a leader does not answer, or an object is damaged. What was noted stays.
        """
        versions = {one.partition: one.version for one in plan}
        left = [group for one in plan for group in one.groups if group not in self.journal.checked]
        tasks = max(1, spark.sparkContext.defaultParallelism)
        work = partial(_rewrite_or_fail, url=self.url, codec=self.job.codec if self.job.kind == REENCODE else None)
        while left and not self.stopped():
            wave = [msgspec.msgpack.encode(one) for one in left[:tasks]]
            left = left[tasks:]
            for answer in spark.sparkContext.parallelize(wave, len(wave)).map(work).collect():
                result = msgspec.msgpack.decode(answer, type=Rewritten | str)
                if isinstance(result, str):
                    raise Rejected(f"{result}; the same command continues from here")
                outcome = self._replace(result, versions)
                if outcome is ErrorCode.INVALID_UPDATE_VERSION:  # so it is for every group of the partition
                    left = _without(left, result.group.partition, self.done)
                advance(result.group.size_bytes)

    def _replace(self, result: Rewritten, versions: dict[int, int]) -> int | ErrorCode:
        """Note what was written, and have it replaced."""
        line = Line(uuid.uuid4(), result, versions[result.group.partition])
        self.journal.note([line])
        if result.after is None:
            self.done.unchanged += len(result.group.before)
            return line.expected_version
        outcome = _commit(self.cluster, self.job, self.journal, line, self.done)
        if not isinstance(outcome, ErrorCode):
            versions[result.group.partition] = outcome
        return outcome


def _without(groups: Sequence[Group], partition: int, done: Done) -> list[Group]:
    """The groups of other partitions; those of this one are counted as left out."""
    for group in groups:
        if group.partition == partition:
            done.leave_out(_LEFT_OUT[ErrorCode.INVALID_UPDATE_VERSION])
    return [group for group in groups if group.partition != partition]


def await_manifests(store: ObjectStore, topic_id: uuid.UUID, journal: Journal, done: Done) -> None:
    """Wait until the manifest objects have what the job has replaced, as readers of the store look there."""
    for partition, version in journal.versions.items():
        found = _awaited(store, ArchiveId(topic_id, partition), version)
        done.manifests_late += found is None or found.version < version


def _rewrite_or_fail(data: bytes, url: str, codec: int | None) -> bytes:
    """`rewrite` in a task: a store that fails is an answer, and no task that Spark repeats."""
    group = msgspec.msgpack.decode(data, type=Group)
    try:
        return msgspec.msgpack.encode(rewrite(group, url, codec))
    except MillstreamError as error:
        place = f"partition {group.partition}, offsets {group.before[0].base_offset}–{group.before[-1].end_offset - 1}"
        return msgspec.msgpack.encode(f"{place}: {error.message}")
