"""What a batch changes in a table that has one row for each key, and which of two changes of a key is the later one.

A change is a row or, for a tombstone, the key of a row that goes. It keeps the place of its record: topic, partition,
offset, timestamp, and the topic's generation (``generations``). ``newer`` compares two places:

- in one partition and one generation, by offset, as Kafka's compaction does;
- in one topic, otherwise by generation;
- between partitions of one generation, and between topics, offsets say nothing: by timestamp, then by topic and
  partition.

A row without a place, such as one that others have written, is older than every change.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PLACE: Final = ("_topic", "_partition", "_offset", "_timestamp")
GENERATION: Final = "_generation"
CHANGE: Final = "_change"
PLACES: Final = (*PLACE, GENERATION)
"""Columns of a table with keys that say which record a row is of."""
_NO_TIME: Final = -(1 << 63)


class Changes(msgspec.Struct, frozen=True):
    """Changes of a table's rows, each key once. ``rows`` are in the table's columns, of which a deleted one has only
    those of the key and the place; ``deleted`` is a boolean array. ``key`` names the columns of the key.
    """

    rows: Any
    deleted: Any
    key: tuple[str, ...]

    def chosen(self, wanted: Any) -> "Changes":
        """Those that a boolean array chooses."""
        return Changes(self.rows.filter(pa.array(wanted)), self.deleted[wanted], self.key)

    @property
    def keys(self) -> list[Any]:
        """The columns of the key."""
        return [_whole(self.rows.column(name)) for name in self.key]


class KeyIndex:
    """Numbers the keys of some rows, so that those of other rows can be found among them."""

    def __init__(self, keys: Sequence[Any]) -> None:
        """``keys`` are the columns of the key, without nulls. ``codes`` has the number of each row's key."""
        self._values: list[Any] = []
        self._pairs: list[Any] = []
        self.codes: Any = np.zeros(len(keys[0]), dtype=np.int64)
        for number, column in enumerate(keys):
            encoded = column.dictionary_encode()
            self._values.append(encoded.dictionary)
            codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            if number:
                pairs, codes = np.unique(self.codes * len(encoded.dictionary) + codes, return_inverse=True)
                self._pairs.append(pairs)
            self.codes = codes

    def find(self, keys: Sequence[Any]) -> Any:
        """The number of each row's key, -1 where no row of the index has it."""
        found: Any = np.zeros(0, dtype=np.int64)
        for number, (column, values) in enumerate(zip(keys, self._values, strict=True)):
            index: Any = getattr(pc, "index_in")  # noqa: B009 (made at run time)
            codes = index(column, value_set=values).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            if number:
                pairs = self._pairs[number - 1]
                wanted = np.where((found < 0) | (codes < 0), -1, found * len(values) + codes)
                at = np.searchsorted(pairs, wanted)
                hit = (at < len(pairs)) & (pairs[np.minimum(at, len(pairs) - 1)] == wanted)
                codes = np.where(hit, at, -1)
            found = codes
        return found


class Places(msgspec.Struct, frozen=True):
    """Places of records, as arrays of one length. A row without a place has generation -1."""

    topics: Any
    partitions: Any
    offsets: Any
    times: Any
    generations: Any

    @classmethod
    def of(cls, rows: Any) -> "Places":
        """The places of a table's rows."""
        times = _whole(rows.column("_timestamp")).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        topics = np.array(_whole(rows.column("_topic")).cast(pa.string()).fill_null("").to_pylist(), dtype=object)
        whole = _whole(rows.column(GENERATION)).is_valid().to_numpy(zero_copy_only=False)
        for name in ("_topic", "_partition", "_offset"):
            whole &= _whole(rows.column(name)).is_valid().to_numpy(zero_copy_only=False)
        generations = np.where(whole, _numbers(rows.column(GENERATION), -1), -1)
        partitions, offsets = _numbers(rows.column("_partition"), -1), _numbers(rows.column("_offset"), -1)
        return cls(topics, partitions, offsets, _numbers(times, _NO_TIME), generations)

    def take(self, indices: Any) -> "Places":
        return Places(
            self.topics[indices], self.partitions[indices], self.offsets[indices], self.times[indices],
            self.generations[indices],
        )  # fmt: skip


def newer(changes: Places, rows: Places) -> Any:
    """Whether each change is later than the row beside it, as a boolean array."""
    same_topic = (changes.topics == rows.topics).astype(bool)
    same_log = same_topic & (changes.generations == rows.generations)
    same_partition = same_log & (changes.partitions == rows.partitions)
    by_name = (changes.topics > rows.topics).astype(bool) | (same_topic & (changes.partitions > rows.partitions))
    by_time = (changes.times > rows.times) | ((changes.times == rows.times) & by_name)
    by_generation = changes.generations > rows.generations
    compared = np.where(same_partition, changes.offsets > rows.offsets, by_time)
    return (rows.generations < 0) | np.where(same_topic & ~same_log, by_generation, compared)


def latest(changes: Changes) -> Changes:
    """The latest change of each key."""
    if not changes.rows.num_rows:
        return changes
    places, codes = Places.of(changes.rows), KeyIndex(changes.keys).codes
    names, topics = np.unique(places.topics.astype(str), return_inverse=True)
    del names
    # The last record of a key in each partition, of the newest generation that the key has in the topic ...
    order = np.lexsort((places.offsets, places.partitions, places.generations, topics, codes))
    code, topic, part = codes[order], topics[order], places.partitions[order]
    generation = places.generations[order]
    topic_ends = np.append((code[1:] != code[:-1]) | (topic[1:] != topic[:-1]), True)
    ends = topic_ends | np.append((part[1:] != part[:-1]) | (generation[1:] != generation[:-1]), True)
    newest = generation[topic_ends][np.cumsum(topic_ends) - topic_ends]
    order = order[ends & (generation == newest)]
    # ... and of these the one with the latest timestamp.
    order = order[np.lexsort((places.partitions[order], topics[order], places.times[order], codes[order]))]
    code = codes[order]
    chosen = order[np.append(code[1:] != code[:-1], True)]
    wanted = np.zeros(len(codes), dtype=bool)
    wanted[chosen] = True
    return changes.chosen(wanted)


def _numbers(column: Any, missing: int) -> Any:
    return _whole(column).cast(pa.int64()).fill_null(missing).to_numpy(zero_copy_only=False)


def _whole(column: Any) -> Any:
    """A column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
