"""The columns of a topic in Spark, and the Arrow buffers that they are decoded into.

Spark accepts a record batch from a Python source only if the first one has exactly the schema that Spark derives from
the DataFrame. The types are therefore declared once, in the order of the Kafka connector. A query that names its schema
(``.schema("value binary, offset bigint")``) gets those columns alone, in its order; the others are not built.

Buffers are reused: 1.5 MB of fresh memory for each batch would cost more in page faults than the decoding. Arrow gets
views of the arrays and holds each while any batch, slice or copy of it lives. A set is free when all its views are
gone, which weak references show. (Reference counts do not: from Python 3.14 on the interpreter need not count
references of variables.)
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from millstream.spark import read_kernel as k
from millstream.spark.wanted import Column

RecordBatch: TypeAlias = Any
"""A ``pyarrow.RecordBatch``. pyarrow ships no types."""

Lend: TypeAlias = Callable[[Any], Any]
"""Type of ``Buffers.lend``."""

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)

ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""The types of ``wanted.COLUMN_NAMES``, in that order."""


def arrow_schema(columns: Sequence[Column]) -> Any:
    """The schema that Spark expects of the record batches."""
    return pa.schema([pa.field(column.name, ARROW_TYPES[column.name], column.nullable) for column in columns])


def _zeros(length: int, dtype: Any) -> Any:
    return np.zeros(length, dtype)


class Buffers:
    """One set of column buffers with its fill state. Not shared between threads."""

    __slots__ = (
        "_lent",
        "arrays",
        "capacity",
        "header_capacity",
        "header_ends",
        "header_key_data",
        "header_key_ends",
        "header_valid",
        "header_value_data",
        "header_value_ends",
        "header_value_valid",
        "key_data",
        "key_ends",
        "key_valid",
        "offsets",
        "state",
        "timestamp_types",
        "timestamps",
        "value_data",
        "value_ends",
        "value_valid",
    )

    def __init__(self, wanted: frozenset[str], rows: int, capacity: int, header_capacity: int) -> None:
        self.capacity = capacity
        self.header_capacity = header_capacity

        def data(name: str) -> Any:
            return np.empty(capacity if name in wanted else 1, np.uint8)

        mask = rows // 8 + 1
        self.state = _zeros(k.STATE_WIDTH, np.int64)
        self.offsets = _zeros(rows, np.int64)
        self.timestamps = _zeros(rows, np.int64)
        self.timestamp_types = _zeros(rows, np.int32)
        self.key_ends, self.key_valid, self.key_data = _zeros(rows + 1, np.int32), _zeros(mask, np.uint8), data("key")
        self.value_ends, self.value_valid = _zeros(rows + 1, np.int32), _zeros(mask, np.uint8)
        self.value_data = data("value")
        self.header_ends, self.header_valid = _zeros(rows + 1, np.int32), _zeros(mask, np.uint8)
        self.header_key_ends, self.header_key_data = _zeros(header_capacity + 1, np.int32), data("headers")
        self.header_value_ends = _zeros(header_capacity + 1, np.int32)
        self.header_value_valid = _zeros(header_capacity // 8 + 1, np.uint8)
        self.header_value_data = data("headers")
        self.arrays: tuple[Any, ...] = (
            self.offsets, self.timestamps, self.timestamp_types,
            self.key_ends, self.key_valid, self.key_data, self.value_ends, self.value_valid, self.value_data,
            self.header_ends, self.header_valid, self.header_key_ends, self.header_key_data,
            self.header_value_ends, self.header_value_valid, self.header_value_data,
        )  # fmt: skip
        """In the kernel's parameter order."""

        self._lent: list[weakref.ref[Any]] = []

    @property
    def rows(self) -> int:
        return int(self.state[k.ROWS])

    def clear(self) -> None:
        """Drop the rows. New rows overwrite masks and data."""
        self.state[:] = 0
        self._lent.clear()

    def lend(self, array: Any) -> Any:
        """An Arrow buffer on one of these arrays, or on a slice of one."""
        view = array[:]
        self._lent.append(weakref.ref(view))
        return pa.py_buffer(view)

    def is_free(self) -> bool:
        """Whether every lent view is gone."""
        return all(view() is None for view in self._lent)


class BufferPool:
    """The buffers of one decoder. A set is reused once no view of it lives.

    ``kept`` is how many sets wait for that at most. A reader that holds on to many batches before it lets go of all of
    them wants as many sets: fresh memory costs the kernel more time than decoding costs here.
    """

    def __init__(self, wanted: frozenset[str], rows: int, byte_limit: int, kept: int = 4) -> None:
        self._wanted = wanted
        self._rows = rows
        self._capacity = byte_limit
        self._header_capacity = rows * 2 if "headers" in wanted else 0
        self._kept = kept
        self._sets: list[Buffers] = []

    def take(self) -> Buffers:
        """An empty set of buffers."""
        for held in self._sets:
            if held.capacity == self._capacity and held.header_capacity == self._header_capacity and held.is_free():
                held.clear()
                return held
        made = Buffers(self._wanted, self._rows, self._capacity, self._header_capacity)
        self._sets = [held for held in self._sets if held.capacity == self._capacity][1 - self._kept :]
        self._sets.append(made)
        return made

    def grow(self, record_bytes: int) -> None:
        """Enlarge later sets for a record that is larger than a whole batch should be."""
        self._capacity = max(self._capacity, record_bytes)
        if "headers" in self._wanted:
            # A header has at least two bytes.
            self._header_capacity = max(self._header_capacity, record_bytes // 2 + 1)


class BatchBuilder:
    """Builds the record batches of one topic partition from filled buffers."""

    def __init__(self, columns: Sequence[Column], topic: str, partition: int, rows: int) -> None:
        self.schema = arrow_schema(columns)
        self._names = [column.name for column in columns]
        self._constants: dict[str, Any] = {}
        if "topic" in self._names:
            name = topic.encode()
            ends = np.arange(rows + 1, dtype=np.int32) * len(name)
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(name * rows)]
            self._constants["topic"] = pa.Array.from_buffers(pa.string(), rows, buffers, 0)
        if "partition" in self._names:
            self._constants["partition"] = pa.array(np.full(rows, partition, np.int32))

    def build(self, filled: Buffers) -> RecordBatch:
        """A batch over the rows in ``filled``, without a copy."""
        return pa.RecordBatch.from_arrays([self._column(name, filled) for name in self._names], schema=self.schema)

    def _column(self, name: str, filled: Buffers) -> Any:
        rows = filled.rows
        if name in self._constants:
            return self._constants[name].slice(0, rows)
        state, lend = filled.state, filled.lend
        if name == "key":
            data = filled.key_data[: state[k.KEY_BYTES]]
            return _binary(lend, pa.binary(), rows, filled.key_ends, filled.key_valid, data, int(state[k.NULL_KEYS]))
        if name == "value":
            data, nulls = filled.value_data[: state[k.VALUE_BYTES]], int(state[k.NULL_VALUES])
            return _binary(lend, pa.binary(), rows, filled.value_ends, filled.value_valid, data, nulls)
        if name == "headers":
            return _headers(filled)
        fixed = {"offset": filled.offsets, "timestamp": filled.timestamps, "timestampType": filled.timestamp_types}
        return pa.Array.from_buffers(ARROW_TYPES[name], rows, [None, lend(fixed[name])], 0)


def _binary(lend: Lend, arrow_type: Any, rows: int, ends: Any, valid: Any, data: Any, nulls: int) -> Any:
    mask = lend(valid) if nulls else None
    return pa.Array.from_buffers(arrow_type, rows, [mask, lend(ends[: rows + 1]), lend(data)], nulls)


def _headers(filled: Buffers) -> Any:
    state, lend = filled.state, filled.lend
    rows, count = filled.rows, int(state[k.HEADERS])
    key_data = filled.header_key_data[: state[k.HEADER_KEY_BYTES]]
    value_data = filled.header_value_data[: state[k.HEADER_VALUE_BYTES]]
    keys = _binary(lend, pa.string(), count, filled.header_key_ends, None, key_data, 0)
    nulls = int(state[k.NULL_HEADER_VALUES])
    values = _binary(lend, pa.binary(), count, filled.header_value_ends, filled.header_value_valid, value_data, nulls)
    pairs = pa.Array.from_buffers(HEADERS_TYPE.value_type, count, [None], 0, children=[keys, values])
    nulls = int(state[k.NULL_HEADERS])
    mask = lend(filled.header_valid) if nulls else None
    return pa.Array.from_buffers(HEADERS_TYPE, rows, [mask, lend(filled.header_ends)], nulls, children=[pairs])
