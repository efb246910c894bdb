"""Whether rows of a result fit the columns of a table that exists.

A column's rows fit if the table's type holds each value unchanged: the same type, a wider number, or a structure whose
members fit. An owner may therefore widen a column while a pipeline writes to it. What would loosen the owner's rules is
refused: a required column that the result lacks, and a name that differs from a column's only by case, because most
readers do not tell them apart.
"""

from typing import Any

import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.tables.table import incompatible


def new_columns(table: str, result: Any, existing: Any) -> list[Any]:
    """The columns of a result that a table lacks.

    Args:
        table: what messages call the table.
        result: the Arrow schema of the rows.
        existing: the table's, in the forms that ``plain`` gives.

    Raises:
        Rejected: the rows do not fit the table's columns, or leave out a required one.
    """
    differences: list[str] = []
    missing: list[Any] = []
    by_case = {field.name.lower(): field.name for field in existing}
    for field in result:
        if field.name in existing.names:
            differences += _differences(field.type, existing.field(field.name).type, f"column {field.name}")
        elif field.name.lower() in by_case:
            differences.append(f"column {field.name} is called {by_case[field.name.lower()]} in the table")
        else:
            missing.append(field)
    if differences:
        raise Rejected(incompatible(table, differences))
    needed = [field.name for field in existing if not field.nullable and field.name not in result.names]
    if needed:
        raise Rejected(
            f"{table} requires a value in {_list(needed)}, and the result has no such column: add it to the query, or "
            "let the table's owner make it optional"
        )
    return missing


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


def _differences(kind: Any, wanted: Any, path: str) -> list[str]:
    """Why values of a type do not all fit another; empty if they do."""
    kind = plain(kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        have = {kind.field(i).name: kind.field(i) for i in range(kind.num_fields)}
        want = {wanted.field(i).name: wanted.field(i) for i in range(wanted.num_fields)}
        found = [f"{path} has the field {name}, in the table it does not" for name in have if name not in want]
        for name, field in want.items():
            if name in have:
                found += _differences(have[name].type, field.type, f"{path}.{name}")
            elif not field.nullable:
                found.append(f"{path} lacks the field {name}, which the table requires")
        return found
    if pa.types.is_map(kind) and pa.types.is_map(wanted):
        keys = _differences(kind.key_type, wanted.key_type, f"{path}.key")
        return keys + _differences(kind.item_type, wanted.item_type, f"{path}.value")
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        return _differences(kind.value_type, wanted.value_type, f"{path}.element")
    return [] if kind == wanted or _widens(kind, wanted) else [f"{path} is {kind}, in the table {wanted}"]


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
