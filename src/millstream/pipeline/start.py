"""Where a sink begins, decided once and then the same for ever.

Three sources, in this order: the checkpoint (it has begun, and ``start.json`` says where), the table (the checkpoint is
gone, but the table's record says how far this sink had come), the declaration (``source.start``, resolved to offsets by
asking the cluster). What was resolved is pinned before the first batch runs.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from millstream.errors import Rejected
from millstream.pipeline.checks import option_text, size, start_ms, topics_of
from millstream.pipeline.model import Pipeline
from millstream.pipeline.state import Offsets, SinkState
from millstream.pipeline.tables.table import CommitRecord
from millstream.spark.bounds import EARLIEST, starting, subscription
from millstream.spark.logs import Logs, SourcePartition
from millstream.spark.offsets import read_offset
from millstream.spark.options import READ, parse_options

_LOG: Final = logging.getLogger("millstream.pipeline")


def source_options(pipeline: Pipeline) -> dict[str, str]:
    """Options of the topic source, but for where it begins."""
    source = pipeline.source
    options = {name: option_text(value) for name, value in source.options.items()}
    options["kafka.bootstrap.servers"] = pipeline.brokers
    options["subscribe"] = ",".join(topics_of(source))
    options["maxBytesPerTrigger"] = str(size(source.max_bytes))
    if source.max_records is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_records)
    return options


def declared_start(pipeline: Pipeline) -> dict[str, str]:
    """The option that says where a new sink begins."""
    moment = start_ms(pipeline.source.start)
    if moment is None:
        return {"startingOffsets": pipeline.source.start}
    return {"startingTimestamp": str(moment), "startingOffsetsByTimestampStrategy": "latest"}


def find_start(pipeline: Pipeline, state: SinkState, last: CommitRecord | None, logs: Logs) -> Offsets:
    """Offsets at which a sink begins; pins them if they are new.

    Args:
        pipeline: the declaration.
        state: of the sink.
        last: the record of the sink's last commit, None for a sink that has none.
        logs: asks the cluster.

    Raises:
        Rejected: a topic does not exist.
        MillstreamError: the cluster does not answer.
    """
    pinned = state.start()
    source_partitions = logs.source_partitions()
    if pinned is not None and state.query_id() is not None:
        return _complete(pinned, source_partitions)
    if last is not None:
        _LOG.warning(
            "%s: its checkpoint is gone; going on where the table says it was, batch %d", last.sink, last.batch
        )
        found = ends_of(last)
    elif pinned is not None:
        return _complete(pinned, source_partitions)
    else:
        options = parse_options({**source_options(pipeline), **declared_start(pipeline)}, READ)
        found: Offsets = {}
        for (topic, partition), offset in logs.start(source_partitions, starting(options, streaming=True)).items():
            found.setdefault(topic, {})[str(partition)] = offset
    return _complete(state.pin_start(found, replace=last is not None), source_partitions)


def encode_offsets(offsets: Offsets) -> str:
    """Offsets as text."""
    return msgspec.json.encode(offsets).decode()


def decode_offsets(text: str) -> Offsets:
    """The offsets behind the text."""
    return msgspec.json.decode(text, type=Offsets)


def open_logs(pipeline: Pipeline) -> Logs:
    """The driver's view of the source's topics."""
    options = parse_options(source_options(pipeline), READ)
    return Logs(options, subscription(options))


def check_checkpoint(state: SinkState, committed: int | None, table: str) -> None:
    """Refuse a checkpoint that is ahead of its table: going on would leave a hole.

    Raises:
        Rejected: it is.
    """
    finished = state.finished_batch()
    if finished is not None and (committed is None or committed < finished):
        holds = "none of this query's batches" if committed is None else f"batch {committed}"
        raise Rejected(
            f"the checkpoint has finished batch {finished}, and the table {table} holds {holds}: the table was "
            f"replaced or set back. To read everything into it again, remove {state.directory}"
        )


def ends_of(record: CommitRecord) -> Offsets:
    """Where a commit ends."""
    offset = read_offset(json.loads(record.offsets))
    return {
        topic.name: {str(partition): position.offset for partition, position in topic.partitions.items()}
        for topic in offset.topics.values()
    }


def _complete(offsets: Mapping[str, Mapping[str, int]], source_partitions: Sequence[SourcePartition]) -> Offsets:
    """With partitions that have appeared since, from their beginning; without those that are gone."""
    found: Offsets = {}
    for place in source_partitions:
        at = offsets.get(place.topic, {}).get(str(place.partition), EARLIEST)
        found.setdefault(place.topic, {})[str(place.partition)] = at
    return found
