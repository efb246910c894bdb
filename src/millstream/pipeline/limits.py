"""What ``--from`` and ``--to`` of a backfill mean, as offsets of each partition.

A limit is ``earliest``, ``latest``, an offset, a time in ISO 8601 (the first record that is not older), or
``PARTITION=OFFSET`` for some partitions, with commas: the others are then left out. With several topics a partition is
``TOPIC-PARTITION``. An end beyond the log has not come: it is refused with the offset that there is, or waited for.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from millstream.errors import Rejected
from millstream.pipeline.checks import start_ms
from millstream.spark.bounds import TopicPartition
from millstream.spark.logs import Logs

_SOME: Final = re.compile(r"(?:(?P<topic>.+)-)?(?P<partition>\d+)=(?P<offset>\d+)")
_LOOK_S: Final = 1.0


class Limits(msgspec.Struct, frozen=True):
    """Where a backfill of one partition starts and ends; ``end`` None is where the pipeline starts. ``oldest`` is the
    log's first offset.
    """

    start: int
    end: int | None
    oldest: int


def edges(
    logs: Logs, start: str, end: str | None, *, wait: bool, phase: Callable[[str], None]
) -> dict[tuple[str, str], Limits]:
    """The limits by topic and partition, as text.

    Raises:
        Rejected: a limit has no such form, or the end has not come.
    """
    if wait and end is None:
        raise Rejected("--wait needs --to: the end to wait for")
    places = [place.key for place in logs.source_partitions()]
    oldest = _offsets(logs, "earliest", places)
    starts = _offsets(logs, start, places)
    ends: dict[TopicPartition, int | None] = dict.fromkeys(places)
    if end is not None:
        _await(logs, end, places, wait=wait, phase=phase)
        ends = {**_offsets(logs, end, places)}
    return {
        (topic, str(partition)): Limits(at, ends[topic, partition], oldest[topic, partition])
        for (topic, partition), at in starts.items()
        if (topic, partition) in ends
    }


def _await(logs: Logs, end: str, places: list[TopicPartition], *, wait: bool, phase: Callable[[str], None]) -> None:
    """Return when the log has reached an end."""
    said = False
    while (lacks := _lacks(logs, end, places)) is not None:
        if not wait:
            raise Rejected(f"{lacks}; --wait waits for it")
        if not said:
            phase(f"waiting: {lacks}")
            said = True
        time.sleep(_LOOK_S)


def _lacks(logs: Logs, end: str, places: list[TopicPartition]) -> str | None:
    """What an end still lacks; None if it has come."""
    moment = _moment(end)
    if moment is not None:
        return f"{end} has not come" if moment > time.time() * 1000 else None
    newest = {place.key: place for place in logs.source_partitions()}
    ends = logs.latest(list(newest.values()))
    for (topic, partition), offset in _offsets(logs, end, places).items():
        if offset > ends[topic, partition].offset:
            at = ends[topic, partition].offset
            return f"offset {offset} of {topic}-{partition} has not come, the log ends at {at}"
    return None


def _moment(text: str) -> int | None:
    """A time, in ms; None for any other form."""
    if text in ("earliest", "latest") or text.isdecimal() or "=" in text:
        return None
    try:
        return start_ms(text)
    except ValueError:
        raise Rejected(
            f"{text!r} is no limit of a backfill: earliest, an offset, a time in ISO 8601, or PARTITION=OFFSET,…"
        ) from None


def _offsets(logs: Logs, text: str, places: list[TopicPartition]) -> Mapping[TopicPartition, int]:
    """The offsets that a limit names, of the partitions that it names."""
    if text.isdecimal():
        return dict.fromkeys(places, int(text))
    if "=" in text:
        return dict(_named(part.strip(), places) for part in text.split(","))
    wanted = logs.source_partitions()
    if text in ("earliest", "latest"):
        found = logs.earliest(wanted) if text == "earliest" else logs.latest(wanted)
        return {key: at.offset for key, at in found.items()}
    moment = _moment(text)
    assert moment is not None, "every other form was tried before"
    at = logs.cluster.list_offsets(dict.fromkeys(places, moment))
    ends = logs.latest(wanted)
    return {key: found.offset if found.offset >= 0 else ends[key].offset for key, found in at.items()}


def _named(text: str, places: list[TopicPartition]) -> tuple[TopicPartition, int]:
    match = _SOME.fullmatch(text)
    topics = {topic for topic, _ in places}
    if match is None:
        raise Rejected(f"{text!r} is not of the form PARTITION=OFFSET")
    topic = match["topic"] or (next(iter(topics)) if len(topics) == 1 else "")
    key = topic, int(match["partition"])
    if key not in places:
        several = "; name it as TOPIC-PARTITION" if len(topics) > 1 and not match["topic"] else ""
        raise Rejected(f"the pipeline reads no partition {match['partition']}{f' of {topic}' if topic else several}")
    return key, int(match["offset"])
