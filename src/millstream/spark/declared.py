"""Declared schemas: Spark's DDL types as Arrow types, without a Spark session.

``carrier string not null, dep_delay double, tags array<string>``, or the same as a mapping of field to type. Types are
those that a JSON value can carry: ``boolean``, ``tinyint`` to ``bigint``, ``float``, ``double``, ``decimal(p, s)``,
``string``, ``binary`` (base64), ``date``, ``timestamp``, ``array<…>``, ``map<string, …>``, ``struct<name: type, …>``.
``json`` is any JSON value, kept as its text in a string column. A field that is ``not null`` must be there, and not be
null, in every record.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from millstream.errors import Rejected
from millstream.spark.fitting import JSON_TEXT

ArrowType: TypeAlias = Any
"""A ``pyarrow.DataType``; pyarrow ships no types."""

_SIMPLE: Final[Mapping[str, ArrowType]] = {
    "boolean": pa.bool_(), "bool": pa.bool_(),
    "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(),
    "float": pa.float32(), "real": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "binary": pa.binary(), "json": JSON_TEXT,
    "date": pa.date32(), "timestamp": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
_TOKEN: Final = re.compile(r"\s*(?:(`[^`]+`|[A-Za-z_][\w$-]*|\d+)|([<>(),:]))")
_MAX_DEPTH: Final = 16


class Field(msgspec.Struct, frozen=True):
    """A declared field; ``required`` is ``not null``."""

    name: str
    type: ArrowType
    required: bool = False


def parse_schema(declared: str | Mapping[str, str]) -> tuple[Field, ...]:
    """The fields of a declared schema, in its order.

    Raises:
        Rejected: a type is unknown, a name stands twice, or the text is not of that form.
    """
    if isinstance(declared, str):
        parser = _Parser(declared)
        fields = parser.fields(end=None, separator="")
    else:
        fields = [_parse_field(name, text) for name, text in declared.items()]
    if not fields:
        raise Rejected("a schema names at least one field")
    seen: set[str] = set()
    for field in fields:
        if field.name.lower() in seen:
            raise Rejected(f"field {field.name} stands twice in the schema; Spark does not tell upper from lower case")
        seen.add(field.name.lower())
    return tuple(fields)


def _parse_field(name: str, text: str) -> Field:
    parser = _Parser(text)
    kind = parser.type()
    required = parser.not_null()
    parser.finish()
    return Field(name, kind, required)


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        self._at = 0
        self._depth = 0
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise Rejected(f"{text[position:].strip()[:20]!r} cannot stand in a schema")
            self._tokens.append(match[1] or match[2])
            position = match.end()

    def fields(self, *, end: str | None, separator: str) -> list[Field]:
        """Fields up to ``end`` (None: the end of the text); ``separator`` stands between name and type, if any."""
        found: list[Field] = []
        while self._peek() != end:
            name = self._word("a field name").strip("`")
            if self._peek() == ":" or separator:
                self._expect(":")
            kind = self.type()
            found.append(Field(name, kind, self.not_null()))
            if self._peek() == end:
                break
            self._expect(",")
        return found

    def type(self) -> ArrowType:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Rejected(f"the schema is nested deeper than {_MAX_DEPTH}")
        try:
            return self._type()
        finally:
            self._depth -= 1

    def _type(self) -> ArrowType:
        word = self._word("a type").lower()
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word == "array":
            self._expect("<")
            element = self.type()
            self._expect(">")
            return pa.list_(pa.field("element", element))
        if word == "map":
            self._expect("<")
            if self.type() != pa.string():
                raise Rejected("a map's key is a string")
            self._expect(",")
            value = self.type()
            self._expect(">")
            return pa.map_(pa.string(), value)
        if word == "struct":
            self._expect("<")
            inner = self.fields(end=">", separator=":")
            self._expect(">")
            return pa.struct([pa.field(field.name, field.type) for field in inner])
        if word in _SIMPLE:
            return _SIMPLE[word]
        raise Rejected(f"type {word} is unknown; known are {', '.join(_SIMPLE)}, decimal, array, map and struct")

    def not_null(self) -> bool:
        if (self._peek() or "").lower() != "not":
            return False
        self._at += 1
        if self._word("null after not").lower() != "null":
            raise Rejected("after not comes null")
        return True

    def finish(self) -> None:
        if self._peek() is not None:
            raise Rejected(f"{self._peek()!r} is more than a type")

    def _decimal(self) -> ArrowType:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._expect("(")
            precision = int(self._word("a precision"))
            if self._peek() == ",":
                self._expect(",")
                scale = int(self._word("a scale"))
            self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise Rejected("a decimal has 1 to 38 digits, and no more of them after the point than it has")
        return pa.decimal128(precision, scale)

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _word(self, what: str) -> str:
        word = self._peek()
        if word is None or word in set("<>(),:"):
            raise Rejected(f"{what} is missing in {self._text.strip()!r}")
        self._at += 1
        return word

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            found = self._peek()
            raise Rejected(f"{token!r} is missing in {self._text.strip()!r}" + (f" before {found!r}" if found else ""))
        self._at += 1
