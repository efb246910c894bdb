"""Whether rows of a result fit the columns of a table that exists.

A column's rows fit if the table's type holds each value unchanged: the same type, a wider number, or a structure whose
members fit. An owner may therefore widen a column while a pipeline writes to it. What the rows have and the table lacks
is a ``Change`` of the table: a new column, a new member of a structure, and, where the format can do that, a wider type
of a column that is there. What would loosen the owner's rules is
refused: a required column that the result lacks. So is what makes a table unreadable: a name that differs from another
one by case alone, at any depth, because most readers do not tell them apart, an empty one, one with a NUL, and a column
without a type (``NULL AS x``), of intervals, or of a structure without members.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.tables.table import incompatible

Widens: TypeAlias = Callable[[Any, Any], bool]
"""Whether a table's column can change from one type (first) to another one. None: columns keep their types, and the
structures in maps their members, because readers of the format do not read older files then.
"""


def require_columns(table: str, columns: Any, path: str = "") -> None:
    """Refuse columns or members that no table can have, or that some readers of tables cannot read.

    Args:
        table: what messages call the table.
        columns: a schema or a struct.
        path: of the struct.

    Raises:
        Rejected: there is one.
    """
    before: dict[str, str] = {}
    for field in columns:
        shown = f"{path}{field.name}"
        twin = before.get(field.name.lower())
        if twin is not None:
            raise Rejected(
                f"{table} cannot have the columns {path}{twin} and {shown}: readers do not tell upper from lower case; "
                "give one another name in the query"
            )
        before[field.name.lower()] = field.name
        if not field.name or "\0" in field.name:
            raise Rejected(f"{table} cannot have a column {shown!r}: give it another name in the query")
        _require_type(table, field.type, shown)


def _require_type(table: str, kind: Any, shown: str) -> None:
    if pa.types.is_null(kind):
        raise Rejected(f"{table} cannot have the column {shown}: it has no type. Cast it to one in the query")
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        raise Rejected(f"{table} cannot have the column {shown}, an interval: cast it to a number or a string")
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise Rejected(f"{table} cannot have the column {shown}, a structure without members")
        require_columns(table, kind, f"{shown}.")
    elif pa.types.is_map(kind):
        _require_type(table, kind.key_type, f"{shown}.key")
        _require_type(table, kind.item_type, f"{shown}.value")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _require_type(table, kind.value_type, f"{shown}.element")


class Change(msgspec.Struct, frozen=True):
    """What a table gets: ``field``, at ``path`` from the column on (``element``, ``key`` and ``value`` within lists and
    maps). ``wider``: the field is there, and its type becomes this one.
    """

    path: tuple[str, ...]
    field: Any
    wider: bool = False


def changes(table: str, result: Any, existing: Any, widens: Widens | None) -> list[Change]:
    """What a table lacks of a result's columns.

    Args:
        table: what messages call the table.
        result: the Arrow schema of the rows.
        existing: the table's, in the forms that ``plain`` gives.
        widens: what the table's format can do.

    Raises:
        Rejected: the rows do not fit the table's columns, or leave out a required one.
    """
    differences: list[str] = []
    found: list[Change] = []
    by_case = {field.name.lower(): field.name for field in existing}
    for field in result:
        if field.name in existing.names:
            compared = _Compared(found, widens)
            differences += compared.differences(field.type, existing.field(field.name).type, (field.name,))
        elif field.name.lower() in by_case:
            differences.append(f"column {field.name} is called {by_case[field.name.lower()]} in the table")
        else:
            found.append(Change((field.name,), field))
    if differences:
        raise Rejected(incompatible(table, differences))
    needed = [field.name for field in existing if not field.nullable and field.name not in result.names]
    if needed:
        raise Rejected(
            f"{table} requires a value in {_list(needed)}, and the result has no such column: add it to the query, or "
            "let the table's owner make it optional"
        )
    return found


def addition(change: Change, existing: Any) -> Any:
    """The column of a table with nothing but a new member, as a field."""
    name, *inner = change.path
    return change.field if not inner else pa.field(name, _around(existing.field(name).type, inner, change.field))


def _around(kind: Any, path: list[str], new: Any) -> Any:
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _around(kind.value_type, path[1:], new)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _around(kind.item_type, path[1:], new))
    name, *inner = path
    return pa.struct([pa.field(name, _around(kind.field(name).type, inner, new)) if inner else new])


def plain(kind: Any) -> Any:
    """A type without views and large offsets, which Spark's Arrow batches do not have."""
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_field(kind.value_field).with_name("element"))
    return kind


def _plain_field(field: Any) -> Any:
    return field.with_type(plain(field.type))


class _Compared:
    """The comparison of one column; what the table lacks goes to ``found``."""

    def __init__(self, found: list[Change], widens: Widens | None, *, in_map: bool = False) -> None:
        self._found = found
        self._can_widen = widens
        self._in_map = in_map

    def differences(self, kind: Any, wanted: Any, path: tuple[str, ...]) -> list[str]:
        """Why values of a type do not all fit another, and it cannot be changed for them; empty if they do."""
        kind = plain(kind)
        if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
            return self._members(kind, wanted, path)
        if pa.types.is_map(kind) and pa.types.is_map(wanted):
            found = [] if kind.key_type == wanted.key_type else [_differs(kind, wanted, path)]
            inside = _Compared(self._found, self._can_widen, in_map=True)
            return found + inside.differences(kind.item_type, wanted.item_type, (*path, "value"))
        if pa.types.is_list(kind) and pa.types.is_list(wanted):
            return self.differences(kind.value_type, wanted.value_type, (*path, "element"))
        if kind == wanted or _widens(kind, wanted):
            return []
        if self._can_widen is not None and self._can_widen(wanted, kind):
            self._found.append(Change(path, pa.field(path[-1], kind), wider=True))
            return []
        return [_differs(kind, wanted, path)]

    def _members(self, kind: Any, wanted: Any, path: tuple[str, ...]) -> list[str]:
        have = {kind.field(i).name: kind.field(i) for i in range(kind.num_fields)}
        want = {wanted.field(i).name: wanted.field(i) for i in range(wanted.num_fields)}
        found: list[str] = []
        for name, field in want.items():
            if name in have:
                found += self.differences(have[name].type, field.type, (*path, name))
            elif not field.nullable:
                found.append(f"column {'.'.join(path)} lacks the field {name}, which the table requires")
        by_case = {name.lower(): name for name in want}
        for name, field in have.items():
            if name in want:
                continue
            if name.lower() in by_case:
                found.append(f"field {name} of {'.'.join(path)} is called {by_case[name.lower()]} in the table")
            elif self._can_widen is None and self._in_map:
                found.append(f"column {'.'.join(path)} has the field {name}, in the table it does not")
            else:
                self._found.append(Change((*path, name), field))
        return found


def _differs(kind: Any, wanted: Any, path: tuple[str, ...]) -> str:
    return f"column {'.'.join(path)} is {kind}, in the table {wanted}"


def _widens(kind: Any, wanted: Any) -> bool:
    if pa.types.is_signed_integer(kind) and pa.types.is_signed_integer(wanted):
        return kind.bit_width <= wanted.bit_width
    if pa.types.is_floating(kind) and pa.types.is_floating(wanted):
        return kind.bit_width <= wanted.bit_width
    if pa.types.is_decimal(kind) and pa.types.is_decimal(wanted):
        return wanted.scale >= kind.scale and wanted.precision - wanted.scale >= kind.precision - kind.scale
    return False


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
