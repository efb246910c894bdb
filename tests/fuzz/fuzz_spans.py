"""Where the fields of a message lie: a second reader of Kafka's messages, written apart from the generated decoders.

``spans`` walks a valid message by its declaration and names every run of bytes that means something: a number, a
count, a length, the text or bytes behind it, a whole element of an array, a tagged section, a whole tagged field. That
is what a mutation needs that bends one field and leaves the rest as it was. Being a second reader it is a witness too:
bytes that the decoder takes and this walk does not fill raise ``Malformed``, and the sample is no seed.
"""

import struct
from enum import Enum
from functools import cache
from typing import NamedTuple

from millstream.wire.headers import flexible_from
from millstream.wire.schema import Field, Kind, Message, Type, fields_of


class What(Enum):
    """What a span of bytes is."""

    NUMBER = "number"
    """A fixed-size number, id or flag."""

    COUNT = "count"
    """Of an array's elements: int32, or an unsigned varint that is one larger."""

    LENGTH = "length"
    """Of text or bytes: int16, int32, or an unsigned varint that is one larger."""

    RUN = "run"
    """Text or bytes; its parent is its length."""

    RECORDS = "records"
    """Record batches; the parent is their length."""

    ITEM = "item"
    """One element of an array; the parent is the count."""

    TAGS = "tags"
    """The number of tagged fields, an unsigned varint."""

    TAG = "tag"
    """A whole tagged field; the parent is the number of them."""

    PRESENCE = "presence"
    """The byte that says whether a struct follows."""


class Span(NamedTuple):
    """Bytes ``start`` to ``end`` (exclusive); ``parent`` is the place in the list of the span that counts it, or -1."""

    start: int
    end: int
    what: What
    parent: int = -1


class Malformed(Exception):
    """The bytes are no such message."""


@cache
def fields(cls: type[Message], version: int) -> tuple[Field, ...]:
    return tuple(field for field in fields_of(cls, version) if field.present)


def spans(cls: type[Message], version: int, data: bytes, pos: int = 0) -> list[Span]:
    """The spans of the message in ``data`` from ``pos`` to its end, in the order in which they begin."""
    walk = _Walk(data, pos, version, version >= cls.FLEXIBLE)
    try:
        walk.struct(cls)
    except (IndexError, struct.error) as error:
        raise Malformed(str(error)) from error
    if walk.pos != len(data):
        raise Malformed(f"{len(data) - walk.pos} bytes left")
    return walk.found


def header_spans(data: bytes) -> list[Span]:
    """The spans of a request header at the start of ``data``; the last ends where the body begins."""
    key, version = struct.unpack_from(">hh", data)
    flexible = version >= flexible_from(key)
    walk = _Walk(data, 8, version, flexible=False)
    walk.found += [Span(0, 2, What.NUMBER), Span(2, 4, What.NUMBER), Span(4, 8, What.NUMBER)]
    try:
        walk.run(Kind.STRING)
        if flexible:
            walk.flexible = True
            walk.tags(())
    except (IndexError, struct.error) as error:
        raise Malformed(str(error)) from error
    return walk.found


class _Walk:
    def __init__(self, data: bytes, pos: int, version: int, flexible: bool) -> None:
        self.data = data
        self.pos = pos
        self.version = version
        self.flexible = flexible
        self.found: list[Span] = []

    def add(self, size: int, what: What, parent: int = -1) -> int:
        """A span of ``size`` bytes from here on; its place in the list."""
        if self.pos + size > len(self.data):
            raise Malformed("ends early")
        self.found.append(Span(self.pos, self.pos + size, what, parent))
        self.pos += size
        return len(self.found) - 1

    def uvarint(self, what: What) -> tuple[int, int]:
        """The number that stands here, and the place of its span."""
        value = shift = size = 0
        while True:
            byte = self.data[self.pos + size]
            value |= (byte & 0x7F) << shift
            size += 1
            shift += 7
            if byte < 0x80:
                return value, self.add(size, what)

    def counted(self, what: What, classic: str) -> tuple[int, int]:
        """A count or a length, -1 for null, and the place of its span."""
        if self.flexible:
            value, place = self.uvarint(what)
            return value - 1, place
        layout = struct.Struct(">" + classic)
        (value,) = layout.unpack_from(self.data, self.pos)
        return value, self.add(layout.size, what)

    def struct(self, cls: type[Message]) -> None:
        tagged: list[Field] = []
        for field in fields(cls, self.version):
            if field.tag is not None and self.flexible:
                tagged.append(field)
            elif field.tag is None:
                self.value(field.type, field.nullable)
        if self.flexible:
            self.tags(tuple(tagged))

    def value(self, kind: Type, nullable: bool) -> None:
        match kind.kind:
            case Kind.STRING | Kind.BYTES | Kind.RECORDS:
                self.run(kind.kind)
            case Kind.ARRAY:
                assert kind.element is not None
                self.array(kind.element)
            case Kind.STRUCT:
                assert kind.struct is not None
                if nullable:
                    there = self.data[self.pos] < 0x80
                    self.add(1, What.PRESENCE)
                    if not there:
                        return
                self.struct(kind.struct)
            case fixed:
                self.add(fixed.size, What.NUMBER)

    def run(self, kind: Kind) -> None:
        size, place = self.counted(What.LENGTH, "h" if kind is Kind.STRING else "i")
        if size > 0:
            self.add(size, What.RECORDS if kind is Kind.RECORDS else What.RUN, place)

    def array(self, element: Type) -> None:
        count, place = self.counted(What.COUNT, "i")
        if count > len(self.data):
            raise Malformed(f"{count} elements")
        for _ in range(count):
            start, at = self.pos, len(self.found)
            self.value(element, nullable=False)
            self.found.insert(at, Span(start, self.pos, What.ITEM, place))
            self._shift(at)

    def tags(self, tagged: tuple[Field, ...]) -> None:
        count, place = self.uvarint(What.TAGS)
        known = {field.tag: field for field in tagged}
        for _ in range(count):
            start, at = self.pos, len(self.found)
            tag, _ = self.uvarint(What.NUMBER)
            size, length = self.uvarint(What.LENGTH)
            end = self.pos + size
            if tag in known:
                self.value(known[tag].type, known[tag].nullable)
            elif size:
                self.add(size, What.RUN, length)
            if self.pos != end:
                raise Malformed("a tagged field of another size")
            self.found.insert(at, Span(start, end, What.TAG, place))
            self._shift(at)

    def _shift(self, at: int) -> None:
        """Behind a span that was put in at ``at``, parents stand one further."""
        found = self.found
        for i in range(at + 1, len(found)):
            span = found[i]
            if span.parent >= at:
                found[i] = span._replace(parent=span.parent + 1)
