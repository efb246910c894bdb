"""Columns of JSON values that nobody has declared, from a sample of them.

Types are ``boolean``, ``bigint`` (``decimal(38, 0)`` beyond 64 bits), ``double``, ``string``, ``array<…>``,
``struct<…>``; a member that is only ever null is a string. A member with two types in the sample is not guessed at.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

from millstream.errors import Rejected

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INT64: Final = 1 << 63
_DEPTH_MAX: Final = 12

Shape: TypeAlias = "str | list[Shape | None] | dict[str, Shape | None] | None"
"""A name of a type, a list of one element's shape, a struct's members; None while only nulls were seen."""


def infer(values: Iterable[bytes], taken: frozenset[str], declare: str) -> dict[str, str]:
    """Member and type of the JSON objects among these values, in the order in which they appear.

    Args:
        values: the sample.
        taken: names that no member may have, in lower case.
        declare: what declares a schema, for errors.

    Raises:
        Rejected: there is none, or a member has several types.
    """
    try:
        return _infer(values, taken, declare)
    except _Ambiguous as error:
        raise Rejected(f"{error}; declare {declare}") from None


class _Ambiguous(Exception):
    """A member whose type the sample does not say."""


def _infer(values: Iterable[bytes], taken: frozenset[str], declare: str) -> dict[str, str]:
    members: dict[str, Shape] = {}
    seen = 0
    for value in values:
        try:
            row: Any = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(row, dict):
            seen += 1
            _merge_members(members, cast("dict[str, Any]", row), ())
    if not seen:
        raise Rejected(f"no JSON object is in the topic, from which columns could be inferred; declare {declare}")
    for name in members:
        if name.lower() in taken:
            raise Rejected(f"{name} is the name of a column beside the value's; declare {declare} without it")
    found = {name: _ddl(shape) for name, shape in members.items()}
    return {name: text for name, text in found.items() if text is not None}


def _merge_members(members: dict[str, Shape], row: dict[str, Any], path: Sequence[str]) -> None:
    for name, value in row.items():
        members[name] = _merged(members.get(name), _shape(value, (*path, name)), (*path, name))


def _shape(value: Any, path: Sequence[str]) -> Shape:
    if len(path) > _DEPTH_MAX:
        raise _Ambiguous(f"{'.'.join(path)} is nested deeper than {_DEPTH_MAX}")
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -_INT64 <= value < _INT64 else "decimal(38, 0)"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        element: Shape = None
        for item in cast("list[Any]", value):
            element = _merged(element, _shape(item, (*path, "[]")), (*path, "[]"))
        return [element]
    inner: dict[str, Shape] = {}
    _merge_members(inner, value, path)
    return inner


_NUMBERS: Final = ("bigint", "decimal(38, 0)", "double")


def _merged(left: Shape, right: Shape, path: Sequence[str]) -> Shape:
    """A type that holds both.

    Raises:
        _Ambiguous: there is none.
    """
    if left is None or right is None or left == right:
        return right if left is None else left
    if isinstance(left, dict) and isinstance(right, dict):
        names = [*left, *(name for name in right if name not in left)]
        return {name: _merged(left.get(name), right.get(name), (*path, name)) for name in names}
    if isinstance(left, list) and isinstance(right, list):
        return [_merged(left[0], right[0], (*path, "[]"))]
    if left in _NUMBERS and right in _NUMBERS:
        return _NUMBERS[max(_NUMBERS.index(cast("str", left)), _NUMBERS.index(cast("str", right)))]
    raise _Ambiguous(
        f"{'.'.join(path)} is {_said(left)} in one record and {_said(right)} in another, so its type cannot be inferred"
    )


def _said(shape: Shape) -> str:
    return shape if isinstance(shape, str) else "an array" if isinstance(shape, list) else "an object"


def _ddl(shape: Shape) -> str | None:
    """Spark's DDL of a type; None for an object without members, which no column can be."""
    if shape is None or isinstance(shape, str):
        return shape or "string"
    if isinstance(shape, list):
        element = _ddl(shape[0])
        return None if element is None else f"array<{element}>"
    inner = [(name, _ddl(member)) for name, member in shape.items()]
    kept = [f"{_quoted(name)}: {text}" for name, text in inner if text is not None]
    return f"struct<{', '.join(kept)}>" if kept else None


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name}`"
