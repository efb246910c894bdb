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

import msgspec
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


class _Texts(msgspec.Struct, frozen=True):
    """Buffers of a column of bytes: where each value ends, which are not null, and the bytes. Keys of headers have no
    nulls.
    """

    ends: Any
    valid: Any
    data: Any


class _Headers(msgspec.Struct, frozen=True):
    """Buffers of the headers: where those of each row end, which rows have some, and the keys and values of all."""

    ends: Any
    valid: Any
    keys: _Texts
    values: _Texts


class Buffers:
    """One set of column buffers with its fill state. Not shared between threads."""

    __slots__ = (
        "_lent",
        "arrays",
        "capacity",
        "header_capacity",
        "headers",
        "keys",
        "offsets",
        "state",
        "timestamp_types",
        "timestamps",
        "values",
    )

    def __init__(self, wanted: frozenset[str], rows: int, capacity: int, header_capacity: int) -> None:
        self.capacity = capacity
        self.header_capacity = header_capacity

        def texts(count: int, name: str) -> _Texts:
            data = np.empty(capacity if name in wanted else 1, np.uint8)
            return _Texts(_zeros(count + 1, np.int32), _zeros(count // 8 + 1, np.uint8), data)

        self.state = _zeros(k.STATE_WIDTH, np.int64)
        self.offsets = _zeros(rows, np.int64)
        self.timestamps = _zeros(rows, np.int64)
        self.timestamp_types = _zeros(rows, np.int32)
        keys, values = self.keys, self.values = texts(rows, "key"), texts(rows, "value")
        of_headers = texts(header_capacity, "headers"), texts(header_capacity, "headers")
        headers = self.headers = _Headers(_zeros(rows + 1, np.int32), _zeros(rows // 8 + 1, np.uint8), *of_headers)
        self.arrays: tuple[Any, ...] = (
            self.offsets, self.timestamps, self.timestamp_types,
            keys.ends, keys.valid, keys.data, values.ends, values.valid, values.data,
            headers.ends, headers.valid, headers.keys.ends, headers.keys.data,
            headers.values.ends, headers.values.valid, headers.values.data,
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
        """Whether every lent view was released."""
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
            return _binary(lend, pa.binary(), rows, filled.keys, int(state[k.KEY_BYTES]), int(state[k.NULL_KEYS]))
        if name == "value":
            return _binary(lend, pa.binary(), rows, filled.values, int(state[k.VALUE_BYTES]), int(state[k.NULL_VALUES]))
        if name == "headers":
            return _headers(filled)
        fixed = {"offset": filled.offsets, "timestamp": filled.timestamps, "timestampType": filled.timestamp_types}
        return pa.Array.from_buffers(ARROW_TYPES[name], rows, [None, lend(fixed[name])], 0)


def _binary(lend: Lend, arrow_type: Any, rows: int, texts: _Texts, size: int, nulls: int) -> Any:
    mask = lend(texts.valid) if nulls else None
    return pa.Array.from_buffers(arrow_type, rows, [mask, lend(texts.ends[: rows + 1]), lend(texts.data[:size])], nulls)


def _headers(filled: Buffers) -> Any:
    state, lend, headers = filled.state, filled.lend, filled.headers
    rows, count = filled.rows, int(state[k.HEADERS])
    keys = _binary(lend, pa.string(), count, headers.keys, int(state[k.HEADER_KEY_BYTES]), 0)
    nulls = int(state[k.NULL_HEADER_VALUES])
    values = _binary(lend, pa.binary(), count, headers.values, int(state[k.HEADER_VALUE_BYTES]), nulls)
    pairs = pa.Array.from_buffers(HEADERS_TYPE.value_type, count, [None], 0, children=[keys, values])
    nulls = int(state[k.NULL_HEADERS])
    mask = lend(headers.valid) if nulls else None
    return pa.Array.from_buffers(HEADERS_TYPE, rows, [mask, lend(headers.ends[: rows + 1])], nulls, children=[pairs])
