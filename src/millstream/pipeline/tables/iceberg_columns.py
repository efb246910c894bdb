"""The columns of an Iceberg table as a writer's rows have them.

Iceberg knows a column, and a member of a structure, by an id that stays when its owner renames it. A writer's record
keeps the ids of its columns with the names that its rows have (``FieldNames``), so a renamed one is still filled, at
any depth. ``row_schema`` gives the table's columns by these names. What has taken over the name of a renamed one gets a
name that no row has.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from millstream.pipeline.layout import FIELD_ID, FILE_NAME, PartitionField, Rules, SortField, with_rules
from millstream.pipeline.tables.columns import plain
from millstream.pipeline.tables.table import CommitRecord

_TABLE_NAME: Final = b"millstream.table-name"


class FieldNames(msgspec.Struct, frozen=True):
    """What a writer calls fields: ``columns`` has the id of each column by name, ``members`` the name of each member of
    a structure by id (as text, a key of JSON).
    """

    columns: dict[str, int] = {}
    members: dict[str, str] = {}

    @classmethod
    def of(cls, record: CommitRecord) -> "FieldNames":
        """What a writer that has committed called them."""
        return cls(record.columns, record.members)

    def joined(self, other: "FieldNames") -> "FieldNames":
        """Both; the other one's names win."""
        return FieldNames({**self.columns, **other.columns}, {**self.members, **other.members})

    def by_id(self) -> dict[int, str]:
        """The name of each field."""
        members = {int(number): name for number, name in self.members.items()}
        return members | {number: name for name, number in self.columns.items()}


def names_of(result: Any, existing: Any) -> FieldNames:
    """What the rows of a result call the fields of a table; ``existing`` is what ``row_schema`` gives."""
    both = [field for field in existing if field.name in result.names]
    members: dict[str, str] = {}
    for field in both:
        _note_members(result.field(field.name).type, field.type, members)
    return FieldNames({field.name: field_id(field) for field in both}, members)


def _note_members(kind: Any, existing: Any, members: dict[str, str]) -> None:
    if pa.types.is_struct(existing) and pa.types.is_struct(kind):
        for field in existing:
            if kind.get_field_index(field.name) >= 0:
                members[str(field_id(field))] = field.name
                _note_members(kind.field(field.name).type, field.type, members)
    elif pa.types.is_map(existing) and pa.types.is_map(kind):
        _note_members(kind.key_type, existing.key_type, members)
        _note_members(kind.item_type, existing.item_type, members)
    elif pa.types.is_list(existing) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        _note_members(kind.value_type, existing.value_type, members)


def table_path(existing: Any, path: Sequence[str]) -> tuple[str, ...]:
    """The path of a field in the table, from its path in rows."""
    found: list[str] = []
    for members, name in _walk(existing, path):
        field = next((each for each in members if each.name == name), None)
        found.append(name if field is None else table_name(field))
    return tuple(found)


def named_by_its_owner(existing: Any, path: Sequence[str]) -> str | None:
    """What rows call the field that has the last name of a path in the table; None if no field has it."""
    *_, (members, name) = _walk(existing, path)
    return next((field.name for field in members if table_name(field) == name), None)


def _walk(existing: Any, path: Sequence[str]) -> Iterator[tuple[list[Any], str]]:
    """Each name of a path with the fields that it is one of; those of a list or a map are left out."""
    within: Any = pa.struct(list(existing))
    for name in path:
        if pa.types.is_struct(within):
            yield list(within), name
            within = within.field(name).type if within.get_field_index(name) >= 0 else pa.null()
        else:
            yield [], name
            if pa.types.is_map(within):
                within = within.item_type if name == "value" else within.key_type
            else:
                within = within.value_type if pa.types.is_list(within) else pa.null()


def table_name(field: Any) -> str:
    """What the table calls a field of rows."""
    return (field.metadata or {}).get(_TABLE_NAME, field.name.encode()).decode()


def as_rows(column: Any, kind: Any) -> Any:
    """A column that was read from the table, as rows have it; its members may have other names."""
    named = _named(kind)
    return column.cast(kind) if named == kind else column.cast(named).view(kind)  # a cast would leave members out


def _named(kind: Any) -> Any:
    """The type with the table's names."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(table_name(field), _named(field.type), field.nullable) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_named(kind.value_type)))
    return pa.map_(kind.key_type, _named(kind.item_type)) if pa.types.is_map(kind) else kind


def row_schema(table: Any, known: FieldNames | None = None) -> Any:
    """The table's columns, with the ids and the names that files have, and its rules. ``known`` says which fields rows
    have under another name than the table's.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    schema = table.schema()
    named, filed = schema_to_pyarrow(schema), schema_to_pyarrow(schema_of_files(schema))
    own = {} if known is None else known.by_id()
    fields = _row_fields(list(named), list(filed), own)
    names = {field_id(field): field.name for field in fields}
    in_files = {field_id(field): field.name for field in filed}
    partition = tuple(
        PartitionField(names[field.source_id], field.name, str(field.transform), str(schema.find_type(field.source_id)))
        for field in table.spec().fields
        if field.source_id in names and str(field.transform) != "void"
    )
    sort = tuple(
        SortField(in_files[field.source_id], field.direction.name == "DESC", field.null_order.name == "NULLS_FIRST")
        for field in table.sort_order().fields
        if field.source_id in names
    )
    return with_rules(pa.schema(fields), Rules(partition, sort))


def schema_of_files(schema: Any) -> Any:
    """An Iceberg schema with the names that its files have. They are those that Iceberg's libraries write, which have
    letters, digits and underscores alone; of two fields that would get one name, the later one's is longer.
    """
    from pyiceberg.schema import Schema, make_compatible_name
    from pyiceberg.types import ListType, MapType, StructType

    def named(kind: Any) -> Any:
        if isinstance(kind, StructType):
            taken = {field.name for field in kind.fields}
            return StructType(*(renamed(field, taken) for field in kind.fields))
        if isinstance(kind, ListType):
            return kind.model_copy(update={"element_type": named(kind.element_type)})
        if isinstance(kind, MapType):
            return kind.model_copy(update={"key_type": named(kind.key_type), "value_type": named(kind.value_type)})
        return kind

    def renamed(field: Any, taken: set[str]) -> Any:
        name = make_compatible_name(field.name)
        while name != field.name and name in taken:
            name += "_"
        taken.add(name)
        return field.model_copy(update={"name": name, "field_type": named(field.field_type)})

    fields = named(schema.as_struct()).fields
    return Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)


def field_id(field: Any) -> int:
    """The id of a field of rows."""
    return int(field.metadata[FIELD_ID])


def _row_fields(named: Sequence[Any], filed: Sequence[Any], own: Mapping[int, str]) -> list[Any]:
    """The columns of a table, or the members of a structure, as rows have them."""
    taken = {own[field_id(field)] for field in named if field_id(field) in own}
    found: list[Any] = []
    for field, inside in zip(named, filed, strict=True):
        free = f"{field.name}#{field_id(field)}" if field.name in taken else field.name
        found.append(_row_field(field.with_name(own.get(field_id(field), free)), inside, own, field.name))
    return found


def _row_field(field: Any, inside: Any, own: Mapping[int, str], named: str = "") -> Any:
    """A field as rows have it, which remembers the field of files, and the table's name if that is another one."""
    metadata = {FIELD_ID: inside.metadata[FIELD_ID]}
    if named not in ("", field.name):
        metadata[_TABLE_NAME] = named.encode()
    if inside.name != field.name:
        metadata[FILE_NAME] = inside.name.encode()
    return pa.field(field.name, _row_type(field.type, inside.type, own), field.nullable, metadata)


def _row_type(kind: Any, inside: Any, own: Mapping[int, str]) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct(_row_fields(list(kind), list(inside), own))
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(_row_field(key, inside.key_field, own), _row_field(item, inside.item_field, own))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_row_field(kind.value_field, inside.value_field, own).with_name("element"))
    return plain(kind)
