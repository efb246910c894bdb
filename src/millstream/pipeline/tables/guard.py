"""The guard of a table: who writes to it under a name, and up to where.

::

    claim (epoch 4) ► batch 7 ► batch 8 ► … ► claim (epoch 5) by another run ► batch 9
                                            │
                                            the run of epoch 4 finds it at its next commit, and ends

A writer's *record* is in the table's own commits. A run starts with a *claim*: a commit without rows whose record
repeats the last one and has the next epoch. Every commit of a run checks, in the same atomic step, that no later claim
is there, so two runs of one name never both add a batch, on any hosts and state directories they have.

A record holds for the history that it went with. An owner may set a table back to an older version; the guard itself
may survive that, and the rows behind it do not. So a table tells whether a record still *stands*, and which record of
the same writer is the newest that does. A run that finds a record that does not stand is refused, because it would
leave a gap, or sends the gap again where it is told to.
"""

import json
from collections.abc import Mapping
from typing import Final

import msgspec

from millstream.errors import MillstreamError, Rejected
from millstream.pipeline.ranges import Ranges
from millstream.pipeline.tables.table import CommitRecord, Table
from millstream.spark.offsets import StreamOffset, read_offset

BACKFILL_SUFFIX: Final = "~backfill"
"""After a sink's name it names the writer of what a backfill reads; a declared name cannot have it."""
REPLAY_SUFFIX: Final = "~replay"
"""After a sink's name it names the writer of replayed rows; a declared name cannot have it."""
_BESIDE: Final = (
    (BACKFILL_SUFFIX, "a backfill", "'millstream pipeline backfill' with the same ends reads what is missing"),
    (
        REPLAY_SUFFIX,
        "a replay",
        "'millstream pipeline run --replay' gives its dead letters back, for 'millstream pipeline replay-dlq'",
    ),
)


class TakenOver(Rejected):
    """Another run of the same name has claimed the table; nothing of the batch was added."""


class SetBack(Rejected):
    """The table's rows do not reach as far as its guard."""


class Moved(MillstreamError):
    """The record is not the one that was read; nothing was added. Read it again."""


def require_own(shown: str, found: CommitRecord | None, record: CommitRecord) -> None:
    """Refuse a commit of a run that another one has taken over from.

    Args:
        shown: what messages call the table.
        found: the table's record of the writer.
        record: the record of the commit.

    Raises:
        TakenOver: the table's record has a later epoch.
    """
    if found is not None and found.epoch > record.epoch:
        by = found.writer or "a later release"
        raise TakenOver(
            f"{shown}: another run of pipeline {record.pipeline} has taken over ({by}); this run ends, and what it had "
            "not committed is read by that one"
        )


def require_same(found: CommitRecord | None, after: CommitRecord | None) -> None:
    """Refuse a claim that does not follow the record that it repeats.

    Raises:
        Moved: it does not.
    """
    if position(found) != position(after):
        raise Moved("the table's record of this pipeline has changed since it was read")


def require_standing(
    shown: str, found: CommitRecord | None, standing: CommitRecord | None, after: CommitRecord
) -> None:
    """Refuse a commit onto a table that was set back behind the run's last batch.

    Args:
        shown: what messages call the table.
        found: the table's record of the writer.
        standing: the newest one that its present history holds.
        after: the run's last record.

    Raises:
        SetBack: it was.
    """
    if position(found) != position(after) or not reaches(standing, after):
        raise set_back(shown, after, standing)


class Recorded(msgspec.Struct, frozen=True):
    """What a table says of a writer: its last record or claim, the record of the last batch that the table has, and,
    if the table was set back behind it, the record that it was set back behind.
    """

    guard: CommitRecord | None
    last: CommitRecord | None
    lost: CommitRecord | None


def recorded(table: Table, owner: str, *, replay: bool) -> Recorded:
    """What a table that exists says of a writer.

    Raises:
        Rejected: it was set back, and nothing is to be replayed.
    """
    guard, standing = table.guard(owner), table.standing(owner)
    lost = guard if guard is not None and not reaches(standing, guard) else None
    if lost is not None and not replay:
        raise Rejected(set_back(table.shown, lost, standing).message)
    return Recorded(guard, standing if standing is not None and standing.begun else None, lost)


def reaches(standing: CommitRecord | None, record: CommitRecord) -> bool:
    """Whether a table that holds ``standing`` has the batch of a record. A claim that was undone costs no rows."""
    if not record.begun:
        return True
    return standing is not None and (standing.query, standing.batch) == (record.query, record.batch)


def require_whole(table: Table, owner: str) -> None:
    """Refuse a table that was set back behind what a backfill or a replay has brought into it for a sink.

    Raises:
        Rejected: it was.
    """
    for suffix, what, remedy in _BESIDE:
        found, standing = table.guard(owner + suffix), table.standing(owner + suffix)
        if found is not None and found.begun and not reaches(standing, found):
            kept = standing.total_rows if standing is not None else 0
            raise Rejected(
                f"{table.shown} was set back behind {what} of {owner}, and holds {kept} of the {found.total_rows} rows "
                f"that it brought. {remedy}"
            )


def position(record: CommitRecord | None) -> tuple[int, str, int] | None:
    """What tells records of one writer apart."""
    return None if record is None else (record.epoch, record.query, record.batch)


def set_back(shown: str, record: CommitRecord, standing: CommitRecord | None) -> SetBack:
    """The refusal of a table that was set back."""
    now = "none of its batches" if standing is None or not standing.begun else f"rows up to {shown_offsets(standing)}"
    return SetBack(
        f"{shown} was set back or made again: pipeline {record.pipeline} has written up to {shown_offsets(record)}, "
        f"and the table holds {now}. 'millstream pipeline run --replay' sends what lies between again"
    )


def shown_offsets(record: CommitRecord) -> str:
    """Where a record ends, for people."""
    try:
        ends = offsets_of(record)
    except (Rejected, ValueError):
        return f"batch {record.batch}"
    places = [f"{topic}-{partition}: {end}" for topic, ends_ in ends.items() for partition, end in ends_.items()]
    return f"batch {record.batch} ({', '.join(places)})" if places else f"batch {record.batch}"


def held_of(record: CommitRecord | None) -> Ranges:
    """The ranges that a backfill's record says are in the table."""
    if record is None or not record.begun:
        return {}
    if record.ranges:
        return record.ranges
    # A record of a version that read history as one range, from the beginning.
    ends = offsets_of(record)
    return {topic: {partition: [(0, end)] for partition, end in found.items()} for topic, found in ends.items()}


def topic_ids_of(record: CommitRecord) -> dict[str, str]:
    """The ids of the topics that a record's offsets are of, by name; none of a claim without a batch."""
    return {topic.name: id_ for id_, topic in _read(record.offsets).topics.items()}


def with_left_topics(offsets: str, last: CommitRecord | None) -> str:
    """Offsets of a batch, with the topics of the last record that are not read now: one that is named again continues
    where it was left, and not from its beginning.
    """
    if last is None:
        return offsets
    now, before = _read(offsets), _read(last.offsets)
    names = {topic.name for topic in now.topics.values()}
    left = {id_: topic for id_, topic in before.topics.items() if topic.name not in names}
    if not left:
        return offsets
    return json.dumps(StreamOffset({**left, **now.topics}, now.bundles).to_json())


def offsets_of(record: CommitRecord) -> Mapping[str, Mapping[str, int]]:
    """The offsets at which a record ends, by topic and partition; none of a claim without a batch."""
    return {
        topic.name: {str(partition): at.offset for partition, at in topic.partitions.items()}
        for topic in _read(record.offsets).topics.values()
    }


def _read(offsets: str) -> StreamOffset:
    """The offsets of a record; none of one without a batch."""
    return read_offset(json.loads(offsets)) if offsets not in ("", "{}") else StreamOffset({})
