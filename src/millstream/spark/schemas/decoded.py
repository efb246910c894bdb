"""What decoding gives, and what decoders of the wire format have in common.

The wire format: a zero byte, the schema id (4 bytes, big-endian), the content. A record without a value (a tombstone)
is a null row and no error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from millstream.spark.schemas.source import Resolved, SchemaSource

Array: TypeAlias = Any
"""A ``pyarrow.Array``."""

HEADER_BYTES: Final = 5
ERROR_MAX: Final = 500


class Boundary(msgspec.Struct, frozen=True):
    """Decoding stopped before row ``row``: its schema ``schema_id`` has fields, or wider types, that the columns lack.

    ``fields`` are those fields with their types.
    """

    row: int
    schema_id: int
    fields: Any


class Decoded(msgspec.Struct, frozen=True):
    """The rows that were decoded: all of a batch, or those before ``boundary``.

    ``columns`` is a StructArray with a field for each column. ``errors`` is a StringArray as long, null where a record
    decoded.
    """

    columns: Array
    errors: Array
    boundary: Boundary | None = None


class Undecodable(ValueError):
    """A record does not decode. The message says why."""


class WireDecoder(ABC):
    """Decodes records to the columns of one reader schema. Not shared between threads.

    ``type`` is the Arrow type of the columns, a struct. ``_wider`` remembers for each schema id which fields of it the
    reader schema lacks, None where there are none.
    """

    def __init__(self, source: SchemaSource, kind: Any, *, stop_at_boundary: bool) -> None:
        self.type = kind
        self._source = source
        self._stop = stop_at_boundary
        self._wider: dict[Any, Any] = {}

    @abstractmethod
    def _row(self, content: memoryview, schema_id: int, writer: Resolved) -> Any:
        """A record as a dict; raises Undecodable."""

    @abstractmethod
    def _type_of(self, content: memoryview, schema_id: int, writer: Resolved) -> Any:
        """The Arrow type of what a record was written with; raises Undecodable."""

    @abstractmethod
    def _key(self, content: memoryview, schema_id: int) -> Any:
        """What ``_type_of`` depends on."""

    def decode(self, values: Array) -> Decoded:
        """Decode a BinaryArray.

        Raises:
            Unavailable: a schema cannot be asked for; nothing is said of any record.
        """
        rows: list[Any] = []
        errors: list[str | None] = []
        boundary: Boundary | None = None
        for index, value in enumerate(values.to_pylist()):
            if value is None:
                rows.append(None)
                errors.append(None)
                continue
            try:
                content, schema_id, writer = self._opened(value)
                if self._stop and (wider := self._wider_fields(content, schema_id, writer)) is not None:
                    boundary = Boundary(index, schema_id, wider)
                    break
                rows.append(self._row(content, schema_id, writer))
                errors.append(None)
            except Undecodable as error:
                rows.append(None)
                errors.append(str(error)[:ERROR_MAX])
        return Decoded(self._columns(rows, errors), pa.array(errors, pa.string()), boundary)

    def _opened(self, value: bytes) -> tuple[memoryview, int, Resolved]:
        if len(value) < HEADER_BYTES or value[0] != 0:
            what = "is empty" if not value else f"begins with {value[:5].hex(' ')}"
            raise Undecodable(f"the value {what}, and not with a zero byte and a schema id")
        schema_id = int.from_bytes(value[1:HEADER_BYTES], "big")
        writer = self._source.by_id(schema_id)
        if writer is None:
            raise Undecodable(f"the registry has no schema with id {schema_id}")
        return memoryview(value)[HEADER_BYTES:], schema_id, writer

    def _wider_fields(self, content: memoryview, schema_id: int, writer: Resolved) -> Any:
        key = self._key(content, schema_id)
        if key not in self._wider:
            found = [field for field in self._type_of(content, schema_id, writer) if self._lacks(field)]
            self._wider[key] = pa.schema(found) if found else None
        return self._wider[key]

    def _lacks(self, field: Any) -> bool:
        index = self.type.get_field_index(field.name)
        return index < 0 or is_wider(field.type, self.type.field(index).type)

    def _columns(self, rows: list[Any], errors: list[str | None]) -> Array:
        try:
            return pa.array(rows, self.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
            for index, row in enumerate(rows):
                try:
                    pa.array([row], self.type)
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as error:
                    rows[index], errors[index] = None, str(error)[:ERROR_MAX]
            return pa.array(rows, self.type)


def is_wider(writer: Any, reader: Any) -> bool:
    """Whether a type holds values that another one does not."""
    if pa.types.is_struct(writer) and pa.types.is_struct(reader):
        for field in writer:
            index = reader.get_field_index(field.name)
            if index < 0 or is_wider(field.type, reader.field(index).type):
                return True
        return False
    if pa.types.is_list(writer) and pa.types.is_list(reader):
        return is_wider(writer.value_type, reader.value_type)
    if pa.types.is_map(writer) and pa.types.is_map(reader):
        return is_wider(writer.item_type, reader.item_type)
    ranks = [(pa.int32(), pa.int64()), (pa.float32(), pa.float64())]
    return any(writer == wide and reader == narrow for narrow, wide in ranks)
