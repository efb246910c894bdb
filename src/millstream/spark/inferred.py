"""Columns of JSON values that are not declared, from a sample of them.

Types are ``boolean``, ``bigint`` (``decimal(38, 0)`` beyond 64 bits), ``double``, ``string``, ``array<…>``,
``struct<…>``; a member that is only ever null is a string. A member without one type, because it has two in the sample,
is an object without members, or is nested too deeply, is ``json``: its values are kept as JSON text.
"""

import re
from collections.abc import Iterable
from typing import Any, Final, TypeAlias, cast

import msgspec

from millstream.errors import Rejected

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INT64: Final = 1 << 63
_DECIMAL38: Final = 10**38
_DEPTH_MAX: Final = 12

Shape: TypeAlias = "str | list[Shape | None] | dict[str, Shape | None] | None"
"""A name of a type, a list of one element's shape, a struct's members; None while only nulls were seen."""
_ANY: Final = "json"


def infer(values: Iterable[bytes], taken: frozenset[str], declare: str) -> dict[str, str]:
    """Member and type of the JSON objects among these values, in the order in which they appear.

    Args:
        values: the sample.
        taken: names that no member may have, in lower case.
        declare: what declares a schema, for errors.

    Raises:
        Rejected: the values have no column, or a member has a name that is taken.
    """
    members: dict[str, Shape] = {}
    seen = 0
    for value in values:
        try:
            row: Any = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(row, dict):
            seen += 1
            _merge_members(members, cast("dict[str, Any]", row), 0)
    if not seen:
        raise Rejected(f"no JSON object is in the topic, from which columns could be inferred; declare {declare}")
    for name in members:
        if name.lower() in taken:
            raise Rejected(f"{name} is the name of a column beside the value's; declare {declare} without it")
    return {name: _ddl(shape) for name, shape in members.items()}


def _merge_members(members: dict[str, Shape], row: dict[str, Any], depth: int) -> None:
    for name, value in row.items():
        members[name] = _merged(members.get(name), _shape(value, depth + 1))


def _shape(value: Any, depth: int) -> Shape:
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if -_INT64 <= value < _INT64:
            return "bigint"
        return "decimal(38, 0)" if abs(value) < _DECIMAL38 else _ANY
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "string"
    if depth > _DEPTH_MAX:
        return _ANY
    if isinstance(value, list):
        element: Shape = None
        for item in cast("list[Any]", value):
            element = _merged(element, _shape(item, depth + 1))
        return [element]
    inner: dict[str, Shape] = {}
    _merge_members(inner, value, depth)
    return inner


_NUMBERS: Final = ("bigint", "decimal(38, 0)", "double")


def _merged(left: Shape, right: Shape) -> Shape:
    """A type that holds both."""
    if left is None or right is None or left == right:
        return right if left is None else left
    if isinstance(left, dict) and isinstance(right, dict):
        names = [*left, *(name for name in right if name not in left)]
        return {name: _merged(left.get(name), right.get(name)) for name in names}
    if isinstance(left, list) and isinstance(right, list):
        return [_merged(left[0], right[0])]
    if left in _NUMBERS and right in _NUMBERS:
        return _NUMBERS[max(_NUMBERS.index(cast("str", left)), _NUMBERS.index(cast("str", right)))]
    return _ANY


def _ddl(shape: Shape) -> str:
    """Spark's DDL of a type."""
    if shape is None or isinstance(shape, str):
        return shape or "string"
    if isinstance(shape, list):
        return f"array<{_ddl(shape[0])}>"
    if (
        not shape
        or len({name.lower() for name in shape}) < len(shape)
        or any("`" in name or not name for name in shape)
    ):
        return _ANY  # no struct, or one that Spark does not take
    return f"struct<{', '.join(f'{_quoted(name)}: {_ddl(member)}' for name, member in shape.items())}>"


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name}`"
