"""What decoding gives, and what decoders of the wire format have in common.

The wire format: a zero byte, the schema id (4 bytes, big-endian), the content. A record without a value (a tombstone)
is a null row and no error.

::

    records ──► by schema id ──decode──► an array for each schema ──fit──► columns ──► in the records' order

Each record is read with the schema that it names, also with an outdated one: an older version, one that was
deleted softly. What was read is fitted to the columns (``fitters``): by name, by an alias of the reader schema, or by
number. What has no column is left out and named in ``left_out``. A schema that is no version of the subject is foreign,
and its records are errors.

The columns are the reader schema's, in the types that the table has where there is one, and after them the table's
other columns, which older versions may fill. A version that is newer than the reader schema and has more, or wider
types, is a *boundary*: decoding stops before its first record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from millstream.errors import Rejected, Unavailable
from millstream.spark.fitters import fitter, written_for
from millstream.spark.fitting import (
    Fault,
    Member,
    fault_of,
    field_of,
    is_wider,
    isolated,
    stored,
    struct_of,
)
from millstream.spark.schemas.source import Resolved, SchemaSource, Use
from millstream.spark.values import SchemaRefused

Array: TypeAlias = Any
"""A ``pyarrow.Array``."""

HEADER_BYTES: Final = 5
VALUE: Final = "value"
"""The one column of a schema that is no record."""


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
    decoded; ``places`` has the column at fault, null where it is the record as a whole.
    """

    columns: Array
    errors: Array
    places: Array
    boundary: Boundary | None = None


class Undecodable(ValueError):
    """A record does not decode. The message says why."""


class ForeignSchema(Undecodable):
    """A record's schema is not of this subject, or cannot be read; other records of the schema have the same fault."""


class Written(ABC):
    """One schema that records were written with. ``members`` are its columns."""

    members: tuple[Member, ...]

    @abstractmethod
    def decode(self, contents: Sequence[memoryview], faults: dict[int, Fault]) -> Array:
        """A StructArray of ``members`` in their stored types; rows that do not decode are null and in ``faults``."""


class _View(msgspec.Struct):
    """A schema that records were written with, and how its rows become the columns. ``fit`` is None if they are them.

    ``more`` are the fields that make it a boundary, ``misfits`` what of it never fits.
    """

    written: Written
    fit: Any
    more: Any = None
    misfits: str | None = None


class Columns(msgspec.Struct, frozen=True):
    """The columns of a decoder: what the reader schema has, and what they are in the table.

    ``type`` is a struct of stored types. ``members`` are the reader's; a column that only the table has is in none.
    """

    type: Any
    members: tuple[Member, ...]


def columns_of(members: Sequence[Member], table: Any = None, own: frozenset[str] = frozenset()) -> Columns:
    """The columns of a reader schema, written into a table.

    Args:
        members: of the reader schema.
        table: the table's Arrow schema as it is; None without one.
        own: the table's columns that are no fields of the value, in lower case.

    A field goes into the column of its name, or of one of its aliases. Its type is the table's, unless the reader's is
    wider; a field without a column is a new one. Columns that only the table has follow, but for required ones.
    """
    if table is None:
        return Columns(stored(struct_of(members)), tuple(members))
    fields = [field for field in table if field.name.lower() not in own]
    taken = {name.lower() for member in members for name in (member.name, *member.aliases)}
    fields = [field for field in fields if field.nullable or field.name.lower() in taken]
    return Columns(pa.struct(_merged(members, fields)), tuple(members))


def _merged(members: Sequence[Member], existing: Sequence[Any]) -> list[Any]:
    """The fields of a table in their order, each with the type that it gets, and after them new ones."""
    names = {member.name.lower() for member in members}
    goes: dict[str, Member] = {}
    new: list[Any] = []
    for member in members:
        aliases = [alias for alias in member.aliases if alias.lower() not in names]
        places = (field_of(existing, name) for name in (member.name, *aliases))
        place = next((field for field in places if field is not None and field.name not in goes), None)
        if place is None:
            new.append(pa.field(member.name, stored(member.type)))
        else:
            goes[place.name] = member
    kept = [(field.name, field.type, goes.get(field.name)) for field in existing]
    return [pa.field(name, stored(kind) if to is None else _column_type(to, kind)) for name, kind, to in kept] + new


def _column_type(member: Member, existing: Any) -> Any:
    kind = stored(member.type)
    if pa.types.is_struct(kind) and pa.types.is_struct(existing):
        return pa.struct(_merged(member.members, list(existing)))
    for is_kind in (pa.types.is_list, pa.types.is_map):
        if is_kind(kind) and is_kind(existing):
            old = existing.item_type if is_kind is pa.types.is_map else existing.value_type
            new = kind.item_type if is_kind is pa.types.is_map else kind.value_type
            inner = _column_type(Member(member.name, new, member.members), old)
            if is_kind is pa.types.is_map:
                return pa.map_(stored(existing.key_type), inner)
            return pa.list_(pa.field("element", inner))
    return kind if is_wider(kind, existing) else stored(existing)


class WireDecoder(ABC):
    """Decodes records to the columns of one reader schema. Not shared between threads.

    ``type`` is the Arrow type of the columns, a struct. ``left_out`` has, by schema id, the fields of records that have
    no column.
    """

    def __init__(
        self,
        source: SchemaSource,
        reader: Resolved,
        columns: Columns,
        *,
        stop_at_boundary: bool,
        subjects: Sequence[str] = (),
        fail_on_schema: bool = False,
    ) -> None:
        """Args:
        source: where schemas are asked for.
        reader: the reader schema.
        columns: what ``columns_of`` made of it.
        stop_at_boundary: stop before records of newer versions with more; False leaves out what is more.
        subjects: further subjects that the records' schemas may be of.
        fail_on_schema: raise ``SchemaRefused`` for a schema that does not fit, in place of errors of its records.
        """
        self.type = columns.type
        self.left_out: dict[int, tuple[str, ...]] = {}
        self._source = source
        self._reader = reader
        self._columns = columns
        self._stop = stop_at_boundary
        self._subjects = frozenset((reader.subject, *subjects)) if reader.subject else frozenset[str]()
        self._fail = fail_on_schema
        self._views: dict[Any, _View | ForeignSchema] = {}

    @abstractmethod
    def _written(self, schema_id: int, key: Any, writer: Resolved) -> Written:
        """What a schema was parsed to; raises Undecodable, or Rejected for a schema that is not valid."""

    def _key(self, content: memoryview, schema_id: int) -> tuple[Any, memoryview]:
        """What ``_written`` depends on, and the content after it; raises Undecodable."""
        return schema_id, content

    def decode(self, values: Array) -> Decoded:
        """Decode a BinaryArray.

        Raises:
            Unavailable: a schema cannot be asked for; nothing is said of any record.
            SchemaRefused: with ``fail_on_schema``, a record's schema does not fit.
        """
        faults: dict[int, Fault] = {}
        groups: dict[Any, tuple[list[int], list[memoryview]]] = {}
        boundary: Boundary | None = None
        length = len(values)
        for index, value in enumerate(values.to_pylist()):
            if value is None:
                continue
            try:
                key, content, schema_id = self._opened(value)
                if self._stop and (more := self._view(key, schema_id).more) is not None:
                    boundary, length = Boundary(index, schema_id, more), index
                    break
            except ForeignSchema as error:
                if self._fail:
                    raise SchemaRefused(index, str(error)) from error
                faults[index] = fault_of(error)
                continue
            except (Undecodable, ValueError) as error:
                faults[index] = fault_of(error)
                continue
            rows, contents = groups.setdefault(key, ([], []))
            rows.append(index)
            contents.append(content)
        found = self._combined(length, [self._group(key, *group, faults) for key, group in groups.items()])
        reasons = [None if (fault := faults.get(index)) is None else fault.reason for index in range(length)]
        places = [None if (fault := faults.get(index)) is None else fault.column for index in range(length)]
        return Decoded(found, pa.array(reasons, pa.string()), pa.array(places, pa.string()), boundary)

    def _group(
        self, key: Any, rows: list[int], contents: list[memoryview], faults: dict[int, Fault]
    ) -> tuple[list[int], Array]:
        """The columns of the records of one schema."""
        view = self._views[key]
        assert isinstance(view, _View), "a foreign schema has no group"
        here: dict[int, Fault] = {}
        array = view.written.decode(contents, here)
        if (fit := view.fit) is not None:
            read = array
            array = isolated(len(rows), lambda s, e: fit(read.slice(s, e - s)), pa.nulls(1, self.type), here)
        if here and self._fail and view.misfits is not None:
            raise SchemaRefused(rows[min(here)], view.misfits)
        for place, fault in here.items():
            faults[rows[place]] = fault
        return rows, array

    def _combined(self, length: int, groups: list[tuple[list[int], Array]]) -> Array:
        """One array in the records' order; records that are in no group are null."""
        if len(groups) == 1 and len(groups[0][0]) == length:
            return groups[0][1]
        order: list[int | None] = [None] * length
        at = 0
        for rows, _ in groups:
            for row in rows:
                order[row] = at
                at += 1
        if not groups:
            return pa.nulls(length, self.type)
        return pa.concat_arrays([array for _, array in groups]).take(pa.array(order, pa.int64()))

    def _opened(self, value: bytes) -> tuple[Any, memoryview, int]:
        if len(value) < HEADER_BYTES or value[0] != 0:
            what = "is empty" if not value else f"begins with {value[:5].hex(' ')}"
            raise Undecodable(f"the value {what}, and not with a zero byte and a schema id")
        schema_id = int.from_bytes(value[1:HEADER_BYTES], "big")
        key, content = self._key(memoryview(value)[HEADER_BYTES:], schema_id)
        self._view(key, schema_id)
        return key, content, schema_id

    def _view(self, key: Any, schema_id: int) -> _View:
        known = self._views.get(key)
        if known is None:
            try:
                known = self._made(key, schema_id)
            except Unavailable:
                raise
            except ForeignSchema as error:
                known = error
            except Rejected as error:
                known = ForeignSchema(f"schema {schema_id}: {error.message}")
            self._views[key] = known
        if isinstance(known, ForeignSchema):
            raise known
        return known

    def _made(self, key: Any, schema_id: int) -> _View:
        writer = self._source.by_id(schema_id)
        if writer is None:
            raise Undecodable(f"the registry has no schema with id {schema_id}")  # not kept: it may come
        newer = self._is_newer(schema_id)
        written = self._written(schema_id, key, writer)
        whole = Member("", struct_of(written.members), written.members)
        reader = Member("", struct_of(self._columns.members), self._columns.members)
        view = _View(written, fitter(whole, self.type, reader))
        lacking = [field for field in written.members if self._lacks(field)]
        if newer and lacking:
            view.more = pa.schema([pa.field(member.name, stored(member.type)) for member in lacking])
        view.misfits = self._misfits(schema_id, written.members)
        unknown = tuple(member.name for member in written.members if self._column(member) is None)
        if unknown:
            self.left_out[schema_id] = unknown
        return view

    def _is_newer(self, schema_id: int) -> bool:
        """Whether a schema may be a newer version of the subject than the reader's.

        Raises:
            ForeignSchema: it is not a version of the subject.
        """
        if self._reader.id and schema_id == self._reader.id:
            return False
        uses = self._source.uses(schema_id)
        if not uses or not self._subjects:
            return True  # the registry does not say
        own = [use for use in uses if use.subject in self._subjects]
        if not own:
            subjects = ", ".join(sorted({use.subject for use in uses})[:3])
            raise ForeignSchema(
                f"schema {schema_id} is of subject {subjects}, and the columns are those of {self._reader.subject}"
            )
        return any(self._is_newer_use(use) for use in own)

    def _is_newer_use(self, use: Use) -> bool:
        return use.subject == self._reader.subject and not use.deleted and use.version > self._reader.version

    def _column(self, member: Member) -> Any:
        """The column that a written field goes to; None without one."""
        for field in self.type:
            reader = next((each for each in self._columns.members if _is_for(each, field.name)), None)
            source = member if reader is None and field.name.lower() == member.name.lower() else None
            if reader is not None:
                source = written_for(reader, [member])
            if source is not None:
                return field
        return None

    def _lacks(self, member: Member) -> bool:
        column = self._column(member)
        return column is None or _has_more(stored(member.type), column.type)

    def _misfits(self, schema_id: int, members: Sequence[Member]) -> str | None:
        """What is wrong with a schema whose fields never fit their columns; for ``fail_on_schema``."""
        found = [
            f"{member.name} is {stored(member.type)}, in the columns {column.type}"
            for member in members
            if (column := self._column(member)) is not None and stored(member.type) != column.type
        ]
        return f"schema {schema_id} does not fit: {'; '.join(found)}" if found else None


def _is_for(reader: Member, column: str) -> bool:
    return reader.name.lower() == column.lower() or column in reader.aliases


def _has_more(written: Any, column: Any) -> bool:
    """Whether a type has members that a column's type lacks, or holds values that it does not."""
    if pa.types.is_struct(written) and pa.types.is_struct(column):
        pairs = [(field.type, field_of(column, field.name)) for field in written]
        return any(found is None or _has_more(kind, found.type) for kind, found in pairs)
    if pa.types.is_list(written) and pa.types.is_list(column):
        return _has_more(written.value_type, column.value_type)
    if pa.types.is_map(written) and pa.types.is_map(column):
        return _has_more(written.item_type, column.item_type)
    return is_wider(written, column)
