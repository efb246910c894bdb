"""The key of a table's rows, and how the key of a record becomes its columns.

Rows have the key's columns by name, from the value or from a query. A tombstone has no value: its columns come from the
record's key, decoded as ``source.key_format`` says and brought to the columns' types:

- ``string`` (of one column by default): UTF-8 text of the value, such as ``42`` or ``2026-11-27``;
- ``json`` (of several by default): an object that has the columns by name;
- ``avro`` and ``protobuf``: a record of the subject ``<topic>-key``, with the columns by name.

The column ``_key`` is the key as it is. A tombstone whose key does not decode is a dead letter, as is one without a
key: no row could be said to be its.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import Rejected
from millstream.pipeline.changes import PLACE
from millstream.pipeline.model import Source
from millstream.pipeline.wire_schemas import registry_of
from millstream.spark.declared import Field
from millstream.spark.fitting import Fault, isolated
from millstream.spark.registry_values import RegistryDecoder, latest_schema
from millstream.spark.values import Decoded, Decoder, JsonDecoder, StringDecoder, fault_arrays

RAW_KEY: Final = "_key"
_WANTED: Final = {"_topic": "string", "_partition": "integer", "_offset": "integer", "_timestamp": "timestamp"}


def require_key(schema: Any, key: Sequence[str]) -> None:
    """Refuse rows that cannot have such a key.

    Args:
        schema: of the rows.
        key: the columns of the key.

    Raises:
        Rejected: a column is missing, or of a type whose values are not compared exactly.
    """
    fault = key_fault({field.name: pa.types.is_floating(field.type) for field in schema}, key)
    if fault is not None:
        raise Rejected(fault)
    for name in key:
        if pa.types.is_nested(schema.field(name).type):
            raise Rejected(f"column {name} is nested, and a key has simple columns: name its members in the query")
    for name in PLACE:
        kind, wanted = schema.field(name).type, _WANTED[name]
        fits = {"string": pa.types.is_string, "integer": pa.types.is_integer, "timestamp": pa.types.is_timestamp}
        if not fits[wanted](kind):
            raise Rejected(f"column {name} is {kind}, and has to be what it is in the source ({wanted})")


def key_fault(columns: Mapping[str, bool], key: Sequence[str]) -> str | None:
    """Why rows with these columns have no such key, as far as names tell; the values say which are floating-point."""
    missing = [name for name in (*key, *PLACE) if name not in columns]
    if missing:
        return (
            f"the result lacks {', '.join(missing)}, and the query has to keep them: the key says which row a record "
            "is of, and _topic, _partition, _offset and _timestamp which of two records is the later one"
        )
    for name in key:
        if columns[name]:
            return (
                f"column {name} is a floating-point number, and such are no key: two that look the same may differ. "
                "Cast it to a decimal or a string in the query"
            )
    return None


class KeyDecoder:
    """Decodes the keys of records to the key's columns."""

    def __init__(self, source: Source, schema: Any, key: Sequence[str]) -> None:
        """``schema`` is the table's.

        Raises:
            Rejected: the registry has no such subject.
            Unavailable: it does not answer, or a library is not installed.
        """
        self._fields = [schema.field(name) for name in key]
        self._raw = tuple(key) == (RAW_KEY,)
        self._one_text = False
        self._decoder = self._decoder_of(source, list(key))

    def _decoder_of(self, source: Source, key: list[str]) -> Decoder:
        kind = source.key_format or ("string" if len(key) == 1 else "json")
        if self._raw or kind == "string":
            self._one_text = not self._raw
            return StringDecoder()
        if kind == "json":
            return JsonDecoder([Field(field.name, field.type, required=True) for field in self._fields])
        topics = [source.topic] if isinstance(source.topic, str) else source.topic
        subject = f"{topics[0]}-key"
        registry = registry_of(source)
        pinned = latest_schema(registry, subject)
        subjects = [f"{topic}-key" for topic in topics]
        return RegistryDecoder(kind, registry, subject, pinned, subjects=subjects)

    def decode(self, keys: Any) -> tuple[list[Any], Any, Any]:
        """The columns, and for each key the reason why it does not decode and the column at fault.

        ``keys`` is a BinaryArray. Columns are null where a key does not decode.
        """
        faults: dict[int, Fault] = {}
        if self._raw:
            columns = [keys]
        else:
            decoded = self._decoder.decode(keys)
            faults = _faults(decoded)
            columns = [self._column(decoded, field, faults) for field in self._fields]
        for index in _indices(keys.is_null()):
            faults[index] = Fault("the record has neither a key nor a value")
        for field, column in zip(self._fields, columns, strict=True):
            for index in _indices(column.is_null()):
                faults.setdefault(
                    index, Fault(f"the record has no value, and {field.name} in its key is null", field.name)
                )
        return columns, *fault_arrays(faults, len(keys))

    def _column(self, decoded: Decoded, field: Any, faults: dict[int, Fault]) -> Any:
        columns = decoded.columns
        names = [columns.type.field(index).name for index in range(columns.type.num_fields)]
        name = "value" if self._one_text else field.name
        if name not in names:
            for index in range(len(columns)):
                faults.setdefault(index, Fault(f"the record's key has no field {name}", field.name))
            return pa.nulls(len(columns), field.type)
        call: Any = pc
        column = columns.field(names.index(name))
        column = call.if_else(decoded.errors.is_null(), column, pa.scalar(None, column.type))
        return _cast(column, field, faults)


def _indices(wanted: Any) -> list[int]:
    call: Any = pc
    return call.indices_nonzero(wanted).to_pylist()


def _cast(values: Any, field: Any, faults: dict[int, Fault]) -> Any:
    here: dict[int, Fault] = {}
    found = isolated(len(values), lambda s, e: values.slice(s, e - s).cast(field.type), pa.nulls(1, field.type), here)
    for index, fault in here.items():
        faults.setdefault(index, Fault(fault.reason, field.name))
    return found


def _faults(decoded: Decoded) -> dict[int, Fault]:
    pairs = zip(decoded.errors.to_pylist(), decoded.places.to_pylist(), strict=True)
    return {index: Fault(f"key: {error}", place) for index, (error, place) in enumerate(pairs) if error is not None}
