"""Positions in a topic as people name them: ``beginning``, ``end``, ``end-5``, an offset, a time, or a time ago.

Used by ``consume --from`` and ``group reset --to``. A time without a zone is local time, since it is typed by a person
looking at a clock; the records at and after it are meant. A time ago (``1h``) is counted from now. ``end-5`` is five
offsets before the end of each partition: that many records, or fewer where compaction or transactions left gaps.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from millstream.cli.connect import offsets_at
from millstream.cli.failure import WrongUsage
from millstream.config.forms import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.cli.confluent import AdminClient

EXPECTED = (
    "beginning, end, end-5 for the last five, an offset such as 1000, a time ago such as 30m, 1h or 7d, or a time such "
    "as 2026-01-31T08:00 (local time) or 2026-01-31T08:00Z (UTC)"
)
_BEFORE_END = re.compile(r"(?:end|latest)\s*-\s*([0-9]{1,18})")
_AGO = re.compile(r"[0-9.]+ ?(ms|s|m|min|h|d)")


class Anchor(Enum):
    """What a position is relative to."""

    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    TIME = "time"
    BEFORE_END = "before end"


class Position(NamedTuple):
    """``value`` is the offset, the time in milliseconds since 1970, or the distance to the end; 0 for the two ends."""

    anchor: Anchor
    value: int = 0


_WORDS = {
    "beginning": Position(Anchor.BEGINNING),
    "earliest": Position(Anchor.BEGINNING),
    "start": Position(Anchor.BEGINNING),
    "end": Position(Anchor.END),
    "latest": Position(Anchor.END),
}


def parse_position(text: str, option: str) -> Position:
    """Read a position; ``option`` is named in the complaint."""
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    if word.isascii() and word.isdigit():
        return Position(Anchor.OFFSET, int(word))
    if before := _BEFORE_END.fullmatch(word):
        return Position(Anchor.BEFORE_END, int(before[1]))
    try:
        if _AGO.fullmatch(word):
            return Position(Anchor.TIME, max(int(time.time() * 1000) - parse_duration_ms(word), 0))
        return Position(Anchor.TIME, int(datetime.fromisoformat(text.strip()).astimezone().timestamp() * 1000))
    except (ValueError, OverflowError):
        raise WrongUsage(f"{option}: {text!r} is not valid, expected {EXPECTED}") from None


def resolve(
    client: AdminClient, partitions: Iterable[tuple[str, int]], position: Position, bootstrap: str, timeout_s: float
) -> dict[tuple[str, int], int]:
    """The offset that ``position`` means in each partition, held within what the partition has."""
    from millstream.cli.confluent import OffsetSpec, TopicPartition

    keys = [TopicPartition(topic, partition) for topic, partition in partitions]
    what = f"topic '{keys[0].topic}'" if keys else "topics"
    starts = offsets_at(client, dict.fromkeys(keys, OffsetSpec.earliest()), what, bootstrap, timeout_s)
    if position.anchor is Anchor.BEGINNING:
        return starts
    ends = offsets_at(client, dict.fromkeys(keys, OffsetSpec.latest()), what, bootstrap, timeout_s)
    if position.anchor is Anchor.END:
        return ends
    if position.anchor is Anchor.BEFORE_END:
        return {key: max(end - position.value, starts[key]) for key, end in ends.items()}
    if position.anchor is Anchor.OFFSET:
        return {key: min(max(position.value, starts[key]), end) for key, end in ends.items()}
    specs = dict.fromkeys(keys, OffsetSpec.for_timestamp(position.value))
    found = offsets_at(client, specs, what, bootstrap, timeout_s)
    return {key: offset if offset >= 0 else ends[key] for key, offset in found.items()}
