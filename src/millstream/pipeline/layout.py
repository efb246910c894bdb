"""How rows of a pipeline become columns of a table's files.

A table gives tasks one Arrow schema: the table's columns in their order, by the names that queries use. What its files
have beyond that is in the schema's metadata, because a schema is what travels to workers:

- a field may have another name in files (Delta's physical names), and an id (Iceberg, Delta's column mapping);
- a field that is not nullable refuses rows without a value, at any depth;
- a schema may name partition fields and a sort order.

``conform`` brings a batch of rows to that schema and refuses what the table's owner forbids. ``in_file`` gives columns
their names in files without a copy. ``split`` parts a batch by partition. A batch that breaks a rule is refused whole,
with the rule and, where the rows carry it, the record: nothing of it is written.
"""

import datetime as dt
import decimal
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import Rejected

FILE_NAME: Final = b"millstream.file-name"
FIELD_ID: Final = b"PARQUET:field_id"
_RULES: Final = b"millstream.rules"
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_DIRECTORY: Final = 200
"""Longest name of a partition's directory, in bytes. File systems take 255, keys of objects have parts of 200 here."""
_NO_DIRECTORY: Final = re.compile(r"^\.|[=/\\\x00-\x1f\x7f]")
_PLACE: Final = ("_topic", "_partition", "_offset")


class PartitionField(msgspec.Struct, frozen=True):
    """One part of a table's partition key.

    ``column`` is the column of the rows, ``name`` the key's name in commits. ``transform`` and ``type`` are Iceberg's
    texts, such as ``bucket[16]`` and ``long``; Delta has neither, and its files lack the column.
    """

    column: str
    name: str
    transform: str = ""
    type: str = ""


class SortField(msgspec.Struct, frozen=True):
    """One column of a sort order."""

    column: str
    descending: bool
    nulls_first: bool


class Rules(msgspec.Struct, frozen=True):
    """What files have beyond columns: a partition key, a sort order, and the end of their names."""

    partition: tuple[PartitionField, ...] = ()
    sort: tuple[SortField, ...] = ()
    ending: str = ".parquet"


def encode_schema(schema: Any) -> str:
    """An Arrow schema as text, metadata included."""
    return schema.serialize().to_pybytes().hex()


def decode_schema(text: str) -> Any:
    """The schema that the text describes."""
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))


def with_rules(schema: Any, rules: Rules) -> Any:
    """The schema that carries the rules."""
    return schema.with_metadata({**(schema.metadata or {}), _RULES: msgspec.json.encode(rules)})


def rules_of(schema: Any) -> Rules:
    """The rules that a schema carries."""
    text = (schema.metadata or {}).get(_RULES)
    return Rules() if text is None else msgspec.json.decode(text, type=Rules)


def file_schema(schema: Any) -> Any:
    """The schema of the table's files: names as in files, without the columns of a Delta partition key."""
    left_out = _left_out(schema)
    return pa.schema([_file_field(field) for field in schema if field.name not in left_out])


def in_file(batch: Any, schema: Any, wanted: Any) -> Any:
    """A conformed batch with the columns of files; ``wanted`` is ``file_schema(schema)``. Nothing is copied."""
    left_out = _left_out(schema)
    columns = [batch.column(index) for index, field in enumerate(schema) if field.name not in left_out]
    return pa.RecordBatch.from_arrays(
        [column.view(field.type) for column, field in zip(columns, wanted, strict=True)], schema=wanted
    )


def conform(batch: Any, schema: Any) -> Any:
    """A batch in the table's order and types; columns that it lacks are null.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit its column's type.
        Rejected: a value is missing where the table's owner requires one.
    """
    names = set(batch.schema.names)
    arrays: list[Any] = []
    for field in schema:
        present = field.name in names
        loose = _loose(field.type)  # a cast to a required member would fail without saying which row
        column = batch.column(field.name).cast(loose) if present else pa.nulls(batch.num_rows, loose)
        missing = _first_missing(column, field, field.name)
        if missing is not None:
            raise Rejected(
                f"column {missing[0]} is required in the table, and {_place(batch, missing[1])} has no value for it; "
                "filter such rows out or fill the column in the query"
            )
        arrays.append(_required(column, field.type) if loose is not field.type else column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def require_partitions(batch: Any, schema: Any) -> None:
    """Raises an error of any kind if a row of a conformed batch has no partition, such as a time beyond the year 9999
    in a table by day, or an empty text in a Delta table.
    """
    for field in rules_of(schema).partition:
        _texts(batch.column(field.column).unique(), field)


def sorted_batch(table: Any, sort: Sequence[SortField]) -> Any:
    """Rows in the order of a sort order."""
    order: Any = getattr(pc, "sort_indices")  # noqa: B009 (made at run time)
    keys = [
        (
            field.column,
            "descending" if field.descending else "ascending",
            "at_start" if field.nulls_first else "at_end",
        )
        for field in sort
    ]
    return table.take(order(table, sort_keys=keys))


def split(batch: Any, partition: Sequence[PartitionField]) -> Iterator[tuple[str, Any]]:
    """Yield the partition key as JSON, and the rows of a conformed batch that have it."""
    if not partition:
        yield "", batch
        return
    keys: list[list[str | None]] = []
    code = np.zeros(batch.num_rows, dtype=np.int64)
    for field in partition:
        encoded = batch.column(field.column).dictionary_encode(null_encoding="encode")
        texts = _texts(encoded.dictionary, field)
        keys.append(texts)
        code = code * len(texts) + encoded.indices.to_numpy(zero_copy_only=False)
    found, inverse = np.unique(code, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse, minlength=len(found)))
    rows = batch.take(pa.array(order))
    joined: dict[str, list[Any]] = {}
    begin = 0
    for each, end in zip(found.tolist(), ends.tolist(), strict=True):
        values: list[str | None] = []
        for texts in reversed(keys):
            each, index = divmod(each, len(texts))
            values.append(texts[index])
        key = dict(zip((field.name for field in partition), reversed(values), strict=True))
        # Different values may have one key, such as two times of one day.
        joined.setdefault(msgspec.json.encode(key).decode(), []).append(rows.slice(begin, end - begin))
        begin = end
    for key, parts in joined.items():
        yield key, pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def names_directories(column: str) -> bool:
    """Whether a column's name can be that of a partition's directory, where some readers of Delta find the value."""
    return bool(column) and len(column.encode()) <= _DIRECTORY // 2 and not _NO_DIRECTORY.search(column)


def directory_of(key: str, schema: Any) -> str:
    """The directory of a partition's files, with a slash at its end: ``country=de/``. Empty without one.

    Some readers of Delta take partition values from it and not from the commit, so it has the form that delta-rs
    writes. Partitions of Iceberg need none.
    """
    fields = [field for field in rules_of(schema).partition if not field.transform]
    if not key or not fields:
        return ""
    texts = msgspec.json.decode(key, type=dict[str, str | None])
    parts = [_directory(field.name, texts[field.name], schema.field(field.column).type) for field in fields]
    named = all(len(part.encode()) <= _DIRECTORY for part in parts)  # those of files that others wrote may be longer
    return "".join(f"{part}/" for part in parts) if named else ""


def _directory(name: str, text: str | None, kind: Any) -> str:
    if text is not None and pa.types.is_timestamp(kind):
        text = text.replace("T", " ").removesuffix("Z")
    return f"{name}={_NO_VALUE if text is None else quote(text, safe='')}"


def _file_field(field: Any) -> Any:
    metadata = dict(field.metadata or {})
    name = metadata.pop(FILE_NAME, None)
    named = field.name if name is None else name.decode()
    return pa.field(named, _file_type(field.type), field.nullable, metadata or None)


def _file_type(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([_file_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_file_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_file_field(kind.key_field), _file_field(kind.item_field))
    return kind


def _left_out(schema: Any) -> set[str]:
    """Columns that are in commits and not in files."""
    return {field.column for field in rules_of(schema).partition if not field.transform}


def _first_missing(array: Any, field: Any, path: str) -> tuple[str, int] | None:
    """The column, and the first of its rows, in which a value is missing that the field requires."""
    if array.null_count and not field.nullable:
        return path, array.is_null().index(True).as_py()
    kind = field.type
    if not _has_required(kind):
        return None
    present = array.is_valid()
    rows = np.flatnonzero(present.to_numpy(zero_copy_only=False))
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            child = kind.field(index)
            found = _first_missing(array.field(index).filter(present), child, f"{path}.{child.name}")
            if found is not None:
                return found[0], int(rows[found[1]])
        return None
    if pa.types.is_map(kind):
        pairs = [(array.keys, kind.key_field, "key"), (array.items, kind.item_field, "value")]
    else:
        pairs = [(array.values, kind.value_field, "element")]
    ends = array.offsets.to_numpy(zero_copy_only=False)
    for values, child, name in pairs:
        found = _first_missing(values.slice(int(ends[0]), int(ends[-1] - ends[0])), child, f"{path}.{name}")
        if found is not None:
            at = int(np.searchsorted(ends - ends[0], found[1], side="right")) - 1
            return found[0], at
    return None


def _required(column: Any, kind: Any) -> Any:
    """A column as a type with requirements, which its values meet."""
    try:
        return column.view(kind)
    except (
        pa.ArrowInvalid
    ):  # of nulls that belong to no row: in front of a slice, or inside of a structure that is null
        return column.take(pa.array(np.arange(len(column)))).view(kind)


def _loose(kind: Any) -> Any:
    """The type without requirements."""
    if pa.types.is_struct(kind):
        return pa.struct([_loose_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_loose_field(kind.value_field))
    return pa.map_(kind.key_field, _loose_field(kind.item_field)) if pa.types.is_map(kind) else kind


def _loose_field(field: Any) -> Any:
    return pa.field(field.name, _loose(field.type), metadata=field.metadata)


def _has_required(kind: Any) -> bool:
    if not pa.types.is_nested(kind):
        return False
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or _has_required(kind.item_type) or _has_required(kind.key_type)
    children = [kind.field(i) for i in range(kind.num_fields)]
    return any(not child.nullable or _has_required(child.type) for child in children)


def _place(batch: Any, row: int) -> str:
    """The record that a row comes from, as far as the row says."""
    if not set(_PLACE) <= set(batch.schema.names):
        return "a row"
    topic, partition, offset = (batch.column(name)[row].as_py() for name in _PLACE)
    return f"{topic}-{partition}, offset {offset}"


def _texts(values: Any, field: PartitionField) -> list[str | None]:
    """The parts of partition keys that these values have.

    Raises:
        ValueError: one of them has none that readers understand.
    """
    if field.transform:
        return _iceberg_texts(values, field)
    found = [_delta_text(value) for value in values.to_pylist()]
    for text in found:
        if text in ("", _NO_VALUE):
            raise ValueError(f"{text!r} means null in the name of a partition, so this text has no partition")
        if text is not None and (size := len(_directory(field.name, text, values.type).encode())) > _DIRECTORY:
            raise ValueError(f"the name of its partition has {size} bytes, and {_DIRECTORY} is the most")
    return found


def _delta_text(value: Any) -> str | None:
    """A partition value as Delta writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return value.isoformat(sep=" ", timespec="microseconds")
        return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    return str(value)


def _iceberg_texts(values: Any, field: PartitionField) -> list[str | None]:
    """Partition values as hexadecimal digits of Iceberg's single-value form."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import NestedField

    source = NestedField.model_validate({"id": 1, "name": "value", "type": field.type, "required": False}).field_type
    transform = parse_transform(field.transform)
    result: Any = transform.result_type(source)
    function: Any = transform.transform(source)
    found: list[str | None] = []
    for value in _internal(values):
        key = None if value is None else function(value)
        found.append(None if key is None else to_bytes(result, key).hex())
    return found


def _internal(values: Any) -> list[Any]:
    """Values in Iceberg's own forms: dates as days, times as microseconds since 1970."""
    if pa.types.is_date(values.type):
        return values.cast(pa.int32()).to_pylist()
    if pa.types.is_timestamp(values.type) or pa.types.is_time(values.type):
        return values.cast(pa.int64()).to_pylist()
    return values.to_pylist()
