"""Copies a topic into another one that has other partitions: each record once, those of a key in their order.

::

    job.json: source, target, end offsets        written once, before the first record
    checkpoint/                                   Spark's own; with it the job continues after a crash
    source ──► one task per partition and batch ──► exactly-once sink ──► target

The job ends at the source's end offsets as they were when it started, however often that is. Keys, values, headers
and timestamps stay as they are; the partition follows from the key as in Kafka's Java producer. Started again after it
has ended, it finds nothing left. A job of the same directory with another source or target is refused, and so is a
target that holds records when the job starts.
"""

import os
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from millstream.client import Cluster
from millstream.client.cluster import EARLIEST, LATEST
from millstream.client.security import PLAIN, Security
from millstream.errors import MillstreamError, Rejected
from millstream.spark.jobs import begin_job, job_of
from millstream.spark.topic_error import topic_error

_POLL_S: Final = 0.5
_ONE_TASK: Final = {"split.bytes": "1024g", "minPartitions": "1"}
"""One task for each partition and batch, which keeps the order of its records."""


class RepartitionJob(msgspec.Struct, frozen=True):
    """What a job does. ``ends`` has the end offset (exclusive) of each partition of the source."""

    source: str
    target: str
    ends: dict[str, int]


class Copied(msgspec.Struct, frozen=True):
    """What a run of a job did. ``offsets`` are those that the job covers, all runs together."""

    source: str
    target: str
    offsets: int
    rows: int
    batches: int
    seconds: float


class JobFailed(MillstreamError):
    """The query of the job failed."""


def begin(bootstrap: str, source: str, target: str, directory: str, *, security: Security = PLAIN) -> RepartitionJob:
    """The job of a directory, which is started if the directory has none.

    Raises:
        Rejected: a topic does not exist, the target has records, or the directory is that of another job.
    """
    job = job_of(directory, RepartitionJob)
    if job is not None:
        if (job.source, job.target) != (source, target):
            raise Rejected(
                f"{directory} belongs to a job that copies {job.source} to {job.target}: give this one another --id"
            )
        return job
    if source == target:
        raise Rejected("source and target are one topic: name another target")
    with Cluster(bootstrap, security=security) as cluster:
        begins, ends = _offsets(cluster, source, EARLIEST), _offsets(cluster, source, LATEST, read_committed=True)
        filled = {key: end for key, end in _offsets(cluster, target, LATEST).items() if end > 0}
    if filled:
        raise Rejected(f"topic {target} has records already: create a new topic for the copy")
    job = RepartitionJob(source, target, {key: max(end, begins[key]) for key, end in ends.items()})
    begin_job(directory, job)
    return job


def run(
    spark: SparkSession,
    bootstrap: str,
    job: RepartitionJob,
    directory: str,
    *,
    batch_bytes: int,
    watch: Callable[[int, int], None],
    stopped: Callable[[], bool],
    properties: Mapping[str, str] = MappingProxyType({}),
) -> Copied:
    """Copy what is left; ``watch`` gets the rows and batches so far, and ``stopped`` is asked twice a second.
    ``properties`` are those of a Kafka client's security.

    Raises:
        JobFailed: the query failed; a new start continues where it was.
    """
    started = time.monotonic()
    reach = {"kafka.bootstrap.servers": bootstrap} | {f"kafka.{name}": value for name, value in properties.items()}
    reads = reach | {"subscribe": job.source, "startingOffsets": "earliest"}
    reads |= {"endingOffsets": msgspec.json.encode({job.source: job.ends}).decode(), "includeHeaders": "true"}
    reads |= {"maxBytesPerTrigger": str(batch_bytes), **_ONE_TASK}
    writes = reach | {"topic": job.target, "delivery": "exactly-once"}
    query = (
        spark.readStream.format("millstream")
        .options(**reads)
        .load()
        .select("key", "value", "headers", "timestamp")
        .writeStream.format("millstream")
        .options(**writes, checkpointLocation=os.path.join(directory, "checkpoint"))
        .queryName(f"repartition {job.source}")
        .trigger(availableNow=True)
        .start()
    )
    counted: dict[int, int] = {}
    try:
        running = True
        while running:
            running = not query.awaitTermination(_POLL_S)  # pyright: ignore[reportArgumentType] (parts of a second, too)
            for progress in query.recentProgress:
                if progress.numInputRows > 0:
                    counted[progress.batchId] = progress.numInputRows
            watch(sum(counted.values()), len(counted))
            if running and stopped():
                query.stop()
                break
    except StreamingQueryException as error:
        raise JobFailed(f"the copy failed and can be started again: {_reason(error)}") from error
    seconds = time.monotonic() - started
    return Copied(job.source, job.target, sum(job.ends.values()), sum(counted.values()), len(counted), seconds)


def _reason(error: StreamingQueryException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("millstream.errors.")]
    return ours[-1].partition(": ")[2] if ours else lines[0]


def _offsets(cluster: Cluster, topic: str, which: int, *, read_committed: bool = False) -> Mapping[str, int]:
    found: Any = cluster.metadata([topic]).topics[topic]
    if found.error_code:
        raise topic_error(topic, found.error_code)
    wanted = {(topic, partition): which for partition in found.partitions}
    offsets = cluster.list_offsets(wanted, read_committed=read_committed)
    return {str(partition): offset.offset for (_, partition), offset in sorted(offsets.items())}
