"""Where a sink starts, decided once and then the same for ever.

Three sources, in this order: the checkpoint (the sink has started, and ``start.json`` says where), the table (the
checkpoint is lost, but the table's record says how far this sink had come), the declaration (``source.start``, resolved
to offsets by asking the cluster). What was resolved is pinned before the first batch runs.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from millstream.errors import Rejected
from millstream.pipeline.checks import option_text, size, start_ms, topics_of
from millstream.pipeline.model import Pipeline
from millstream.pipeline.source_position import positions
from millstream.pipeline.state import Offsets, SinkState
from millstream.pipeline.tables.guard import offsets_of, topic_ids_of
from millstream.pipeline.tables.table import CommitRecord
from millstream.spark.bounds import EARLIEST, starting, subscription
from millstream.spark.logs import Logs, SourcePartition
from millstream.spark.options import READ, parse_options

_NO_ID: Final = "0" * 32
_LOG: Final = logging.getLogger("millstream.pipeline")


def source_options(pipeline: Pipeline) -> dict[str, str]:
    """Options of the topic source, but for where it starts."""
    source = pipeline.source
    options = {name: option_text(value) for name, value in source.options.items()}
    options |= pipeline.reach
    options["subscribe"] = ",".join(topics_of(source))
    options["maxBytesPerTrigger"] = str(size(source.max_bytes))
    if source.max_records is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_records)
    return options


def declared_start(pipeline: Pipeline) -> dict[str, str]:
    """The option that says where a new sink starts."""
    moment = start_ms(pipeline.source.start)
    if moment is None:
        return {"startingOffsets": pipeline.source.start}
    return {"startingTimestamp": str(moment), "startingOffsetsByTimestampStrategy": "latest"}


def find_start(
    pipeline: Pipeline, state: SinkState, last: CommitRecord | None, logs: Logs, *, replay: bool = False
) -> Offsets:
    """Offsets at which a sink starts; pins them if they are new.

    Args:
        pipeline: the declaration.
        state: of the sink.
        last: the record of the sink's last commit, None for a sink that has none.
        logs: asks the cluster.
        replay: topics that were made again are read from their beginning.

    Raises:
        Rejected: a topic does not exist; the record is of another topic or cluster.
        MillstreamError: the cluster does not answer.
    """
    source_partitions = logs.source_partitions()
    pinned, is_started = state.start(), state.query_id() is not None
    if last is not None:
        replaced = _replaced_topics(last, logs, source_partitions)
    else:  # before the first batch the file alone knows the topics
        replaced = {} if state.has_batches() else _made_again(state.start_topics(), source_partitions)
    if replaced:
        if not replay:
            raise _misread(os.path.basename(state.directory), replaced)
        state.forget()
        is_started = False
    if pinned is not None and is_started:
        return _complete(pinned, source_partitions)
    if last is not None:
        _LOG.warning(
            "%s: its checkpoint is missing; continuing where the table says it was, batch %d", last.sink, last.batch
        )
        found = {topic: dict(ends) for topic, ends in offsets_of(last).items()}
    elif pinned is not None:
        found = pinned
    else:
        options = parse_options({**source_options(pipeline), **declared_start(pipeline)}, READ)
        found: Offsets = {}
        for (topic, partition), offset in logs.start(source_partitions, starting(options, streaming=True)).items():
            found.setdefault(topic, {})[str(partition)] = offset
    found = {topic: ends for topic, ends in found.items() if topic not in replaced}
    held = state.pin_start(found, topic_ids(source_partitions), replace=last is not None)
    return _complete(held, source_partitions)


def require_same_source(last: CommitRecord, logs: Logs) -> None:
    """Refuse to read on from a record whose offsets are of other topics than those of that name now.

    Raises:
        Rejected: a topic was made again, or it is another cluster.
    """
    replaced = _replaced_topics(last, logs, logs.source_partitions())
    if replaced:
        raise _misread(last.sink, replaced)


def _misread(sink: str, replaced: Mapping[str, str]) -> Rejected:
    return Rejected(
        f"{sink}: {'; '.join(replaced.values())}, so the offsets at which the sink is mean other records. "
        "'millstream pipeline run --replay' reads what is there now from its beginning, into the same table"
    )


def require_same_topics(last: CommitRecord, logs: Logs) -> None:
    """Refuse offsets of a record that are of other topics than those of that name now.

    Raises:
        Rejected: a topic was made again, or it is another cluster.
    """
    replaced = _replaced_topics(last, logs, logs.source_partitions())
    if replaced:
        raise _left_out(last.sink, replaced)


def require_pinned_topics(state: SinkState, logs: Logs) -> None:
    """Refuse offsets that were pinned and are of other topics than those of that name now.

    Raises:
        Rejected: a topic was made again.
    """
    replaced = _made_again(state.start_topics(), logs.source_partitions())
    if replaced:
        raise _left_out(os.path.basename(state.directory), replaced)


def _left_out(sink: str, replaced: Mapping[str, str]) -> Rejected:
    return Rejected(f"{sink}: {'; '.join(replaced.values())}; what the pipeline left out is no longer there")


def begin_of(last: CommitRecord | None, starts: Offsets, logs: Logs) -> str:
    """Where a sink started, as text for its next records: as its last one says, but for topics that are others now."""
    if last is None:
        return encode_offsets(starts)
    if not last.begin:
        return ""
    replaced = _replaced_topics(last, logs, logs.source_partitions())
    return encode_offsets({**decode_offsets(last.begin), **{topic: starts[topic] for topic in replaced}})


def topic_ids(source_partitions: Sequence[SourcePartition]) -> dict[str, str]:
    """The ids of topics by name."""
    return {place.topic: place.topic_id for place in source_partitions}


def _replaced_topics(last: CommitRecord, logs: Logs, source_partitions: Sequence[SourcePartition]) -> dict[str, str]:
    """Topics that are others than those of a record, with what has become of them."""
    cluster = logs.cluster.metadata([]).cluster_id
    if last.cluster and cluster and last.cluster != cluster:
        return {
            name: f"topic {name} was read from cluster {last.cluster}, and this is cluster {cluster}"
            for name in topic_ids(source_partitions)
        }
    return _made_again(topic_ids_of(last), source_partitions)


def _made_again(before: Mapping[str, str], source_partitions: Sequence[SourcePartition]) -> dict[str, str]:
    """Topics that have another id than before, with what has become of them."""
    return {
        name: f"topic {name} was deleted and made again (its id was {before[name]} and is {id_})"
        for name, id_ in topic_ids(source_partitions).items()
        if name in before and {before[name], id_}.isdisjoint({_NO_ID}) and before[name] != id_
    }


def encode_offsets(offsets: Offsets) -> str:
    """Offsets as text."""
    return msgspec.json.encode(offsets).decode()


def decode_offsets(text: str) -> Offsets:
    """The offsets that the text names."""
    return msgspec.json.decode(text, type=Offsets)


def open_logs(pipeline: Pipeline) -> Logs:
    """The driver's view of the source's topics. A start time that a partition has no record for is its end."""
    options = parse_options({**source_options(pipeline), **declared_start(pipeline)}, READ)
    return Logs(options, subscription(options))


def check_checkpoint(state: SinkState, last: CommitRecord | None, table: str, *, replay: bool = False) -> bool:
    """Whether a sink may continue from its checkpoint. It may not if another run of the pipeline has gone further, nor
    if the checkpoint was set back behind the table's last batch, by a copy of an earlier day or a power failure: Spark
    would give the numbers of batches that are in the table to other records. Then the table says where to continue, and
    the checkpoint is to be forgotten. So it is with ``replay`` where it is ahead.

    Raises:
        Rejected: the checkpoint is ahead of the table, and continuing would leave a hole.
    """
    query, finished, ahead = state.query_id(), state.finished_batch(), False
    if query is None:
        return True
    if last is not None and last.query != query:
        ends = offsets_of(last)
        at = positions(state.offsets(finished)) if finished is not None else state.start() or {}
        ahead = any(
            offset > ends.get(topic, {}).get(partition, 0)
            for topic, partitions in at.items()
            for partition, offset in partitions.items()
        )
        if not ahead:
            return finished is None and all(
                at.get(topic, {}).get(partition) == end
                for topic, partitions in ends.items()
                for partition, end in partitions.items()
            )
    committed = last.batch if last is not None and last.query == query else None
    if ahead or (finished is not None and (committed is None or committed < finished)):
        if replay:
            return False
        reached = "starts behind the table's last batch" if finished is None else f"has finished batch {finished}"
        holds = "none of this query's batches" if committed is None else f"batch {committed}"
        raise Rejected(
            f"the checkpoint {reached}, and the table {table} holds {holds}: the table was "
            "made again or set back. 'millstream pipeline run --replay' sends again what it lacks"
        )
    if last is None or committed is None:
        return True
    return state.has_offsets(committed) and state.offsets(committed) == json.loads(last.offsets)


def _complete(offsets: Mapping[str, Mapping[str, int]], source_partitions: Sequence[SourcePartition]) -> Offsets:
    """With partitions that have appeared since, from their beginning; without those that no longer exist."""
    found: Offsets = {}
    for place in source_partitions:
        at = offsets.get(place.topic, {}).get(str(place.partition), EARLIEST)
        found.setdefault(place.topic, {})[str(place.partition)] = at
    return found
