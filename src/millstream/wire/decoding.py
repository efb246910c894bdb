"""Generates the decoder of one message at one version.

The generated function is straight-line code with one loop per array. For example (Produce v9, shortened)::

    acks, timeout_ms, count = unpack_hiB(buf, pos)
    pos += 7
    if count > 127:
        count, pos = uvarint_rest(buf, count, pos)
    count -= 1
    if count * 3 > end - pos: ...
    topic_data = []
    for _ in range(count):
        ...
        topic_data.append(TopicProduceData(name, ZERO_UUID, partition_data))

One ``struct`` call reads adjacent fixed-size fields and the first byte of a length after them.

Safety on hostile bytes: ``buf`` is cut at ``end`` first, so reading past it raises ``IndexError`` or ``struct.error``,
which become ``ProtocolError``. A string or byte run that claims too much is a slice, which cannot be longer than the
buffer and leaves ``pos`` beyond ``end``; the next read or the last check then fails. An array count is compared with
the remaining bytes, divided by the minimum size of an element, before the first element is read. Nothing recurses.

**The bound.** A request of n bytes becomes objects of at most ``4 n + OBJECT_BYTES_MAX`` bytes, and of at most 48 bytes
for each byte of the request. ``4 n`` alone is not possible: the smallest element of an array takes one byte on the wire
and a pointer of eight here, and an honest FetchRequest takes eight times its bytes. Therefore requests, and messages
that clients put into them, are charged for the objects of an array's elements before the first is made. The charge
depends on the type (struct, number, list, string header) and is at least ``ELEMENT_BYTES_MIN``. The bytes of strings
are covered by ``4 n``: a string can become four times as long.

The charge bounds the work, too. A frame of 16 MiB could hold millions of empty strings and would keep a shard busy for
seconds. No *single* allocation for a request exceeds ``4 n + 64 KiB``. The largest is the list of an array, with eight
bytes per element and an eighth of growth. Elements of three bytes stay below ``4 n``; 65,536 elements of two bytes
exceed it by 64 KiB. Of elements that may take one byte (strings and arrays in flexible versions, booleans, one-byte
numbers), more than ``TINY_MAX`` are accepted only if two bytes remain for each. ``net.parking`` bounds the objects of
all requests that wait for responses. For that, the decoder of every request but Produce stores in ``ROOM_LEFT`` what
was not charged.
"""

import struct
from array import array
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Final

from millstream.wire.codegen import Source
from millstream.wire.errors import ProtocolError
from millstream.wire.schema import Field, Kind, Message, Request, Type, fields_of
from millstream.wire.varint import read_uvarint, uvarint_rest

OBJECT_BYTES_MAX: Final = 8 << 20
"""Maximum charge for the elements of one request, nested ones included: at worst 30 ms of decoding. Enough for a Fetch
of 29,000 partitions, the largest honest request.
"""

ELEMENT_BYTES_MIN: Final = 128
"""Minimum charge of an element or a tagged field, because each is work. It limits a request to 65,536 of them."""

ROOM_LEFT: Final = [OBJECT_BYTES_MAX]
"""Part of ``OBJECT_BYTES_MAX`` that the last decoded request left."""

_SLOT_BYTES = 10
"""Charge for an element's place in its list. Lists over-allocate by an eighth."""

_OBJECT_BYTES = {
    Kind.BOOL: 0,
    Kind.FLOAT64: 32,
    Kind.UUID: 64,
    Kind.STRING: 64,
    Kind.BYTES: 48,
    Kind.RECORDS: 192,
    Kind.ARRAY: 112,
}
"""Charge for a value, without its reference and the bytes of its text. A number takes ``_NUMBER_BYTES``."""

_NUMBER_BYTES = 32

TINY_MAX: Final = 8192
"""Maximum number of one-byte elements in an array: a list of 72 KiB."""

TEXT_BYTES_MAX: Final = 32767
"""Maximum size of a string, as in Kafka: the maximum int16, which is the length type of versions that are not
flexible.
"""

_PRODUCE = 0
_RESERVED = frozenset({"buf", "pos", "end", "stop", "error", "room"})
_SMALL = [struct.Struct(f">{count}i").unpack_from for count in range(17)]


def read_int32s(buf: memoryview, pos: int, count: int) -> list[int]:
    """``count`` big-endian int32 from ``pos`` on. The caller has checked the bounds."""
    if count < 17:
        return list(_SMALL[count](buf, pos))
    numbers = array("i")
    numbers.frombytes(buf[pos : pos + 4 * count])
    numbers.byteswap()
    return numbers.tolist()


def skip_tags(buf: memoryview, count: int, pos: int) -> int:
    """Skip ``count`` tagged fields and return the position after them."""
    for _ in range(count):
        _, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
    return pos


def check_count(count: int, least: int, left: int, room: int = 0) -> None:
    """Refuse a count of elements of at least ``least`` bytes that ``left`` bytes cannot hold, or one beyond the budget.

    ``room`` is the remaining charge of the request; negative means exceeded.
    """
    if count * least > left:
        raise ProtocolError(f"{count} elements claimed where {left} bytes are left")
    if room < 0:
        raise ProtocolError(f"elements of more than {OBJECT_BYTES_MAX} bytes")


def tiny_error(count: int) -> ProtocolError:
    """The error for too many one-byte elements."""
    return ProtocolError(f"{count} elements of less than two bytes each")


def text_error(size: int) -> ProtocolError:
    """The error for a string beyond the maximum size."""
    return ProtocolError(f"a string of {size} bytes")


def length_rest(buf: memoryview, first: int, pos: int) -> tuple[int, int]:
    """Read the rest of a compact length. Over-long encodings of null are refused, so that a length is never
    negative.
    """
    value, pos = uvarint_rest(buf, first, pos)
    if value == 0:
        raise ProtocolError("over-long encoding of null")
    return value, pos


def null_error(name: str) -> ProtocolError:
    """The error for a null in a field that cannot be null."""
    return ProtocolError(f"{name} is null")


_FUNCTIONS = {
    "ProtocolError": ProtocolError,
    "check_count": check_count,
    "length_rest": length_rest,
    "null_error": null_error,
    "read_int32s": read_int32s,
    "read_uvarint": read_uvarint,
    "ROOM_LEFT": ROOM_LEFT,
    "skip_tags": skip_tags,
    "struct_error": struct.error,
    "text_error": text_error,
    "tiny_error": tiny_error,
    "uvarint_rest": uvarint_rest,
}


def decoder_source(cls: type[Message], version: int, lenient: bool = False) -> Source:
    """Source of ``decode(buf, pos, end) -> cls``.

    A lenient decoder reads requests: it ignores trailing bytes, and charges for elements.
    """
    return _Decoder(cls, version, lenient).source


def object_bytes(kind: Type, version: int) -> int:
    """Maximum size of an empty or small value of this type, with everything that it references."""
    if kind.struct is None:
        return _OBJECT_BYTES.get(kind.kind, _NUMBER_BYTES)
    fields = fields_of(kind.struct, version)
    made = [object_bytes(field.type, version) for field in fields if field.present or field.default == []]
    return 32 + 8 * len(fields) + sum(made)


class _Decoder:
    def __init__(self, cls: type[Message], version: int, lenient: bool) -> None:
        self.version = version
        self.flexible = version >= cls.FLEXIBLE
        self.counts = lenient
        self.source = source = Source(_RESERVED)
        self.line, self.block = source.line, source.block
        self.pending: list[tuple[str, str]] = []
        source.globals.update(_FUNCTIONS)
        where = f"{cls.__name__} v{version}"
        with self.block("def decode(buf, pos, end):"):
            with self.block("if type(buf) is not memoryview:"):
                self.line("buf = memoryview(buf)")
            with self.block("if len(buf) != end:"):
                self.line("buf = buf[:end]")
            if self.counts:
                self.line(f"room = {OBJECT_BYTES_MAX}")
            with self.block("try:"):
                made = self.struct(cls)
                self.flush()
                with self.block("if pos > end:" if lenient else "if pos != end:"):
                    self.line('raise ProtocolError(f"{end - pos} bytes too many" if pos < end else "ends early")')
                if issubclass(cls, Request) and cls.API_KEY != _PRODUCE:
                    self.line("ROOM_LEFT[0] = room")
                self.line(f"return {made}")
            with self.block("except (IndexError, struct_error) as error:"):
                self.line(f'raise ProtocolError("{where}: ends early") from error')
            with self.block("except UnicodeDecodeError as error:"):
                self.line(f'raise ProtocolError("{where}: text is not UTF-8") from error')
            with self.block("except ProtocolError as error:"):
                self.line(f'raise ProtocolError(f"{where}: {{error.message}}") from None')

    def flush(self) -> None:
        """Read the pending fixed-size values with one call."""
        if not self.pending:
            return
        names = [name for name, _ in self.pending]
        codes = [code for _, code in self.pending]
        self.pending.clear()
        if codes == ["B"]:
            self.line(f"{names[0]} = buf[pos]")
            self.line("pos += 1")
            return
        unpack, size = self.source.packer(codes, unpack=True)
        self.line(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {unpack}(buf, pos)")
        self.line(f"pos += {size}")

    def struct(self, cls: type[Message]) -> str:
        """Read the fields of a struct, and return the expression that builds it."""
        values: list[str] = []
        tagged: list[tuple[Field, str]] = []
        for field in fields_of(cls, self.version):
            if not field.present:
                values.append(self.default(field))
            elif field.tag is not None:
                name = self.source.local(field.name)
                tagged.append((field, name))
                values.append(name)
            else:
                values.append(self.value(field.name, field.type, field.nullable))
        if self.flexible:
            self.tags(tagged)
        return f"{self.source.constant(cls.__name__, cls)}({', '.join(values)})"

    def default(self, field: Field) -> str:
        """Expression for a field's default. Lists are new each time."""
        value = field.default
        if value is None or isinstance(value, bool | int | str) or value == []:
            return repr(value)
        return self.source.constant(f"DEFAULT_{field.name}", value)

    def value(self, wish: str, kind: Type, nullable: bool) -> str:
        """Read one value into a local variable, and return its name."""
        name = self.source.local(wish)
        match kind.kind:
            case Kind.STRING | Kind.BYTES | Kind.RECORDS:
                self.run(name, wish, kind.kind, nullable)
            case Kind.ARRAY:
                assert kind.element is not None
                self.array(name, wish, kind.element, nullable)
            case Kind.STRUCT:
                assert kind.struct is not None
                self.nested(name, kind.struct, nullable)
            case fixed:
                self.pending.append((name, fixed.value))
        return name

    @contextmanager
    def length(
        self, name: str, wish: str, size: str, classic: str, nullable: bool, *, text: bool = False
    ) -> Generator[None, None, None]:
        """Read a length into ``size``, handle null, and open the block for a value that is present."""
        self.pending.append((size, "B" if self.flexible else classic))
        self.flush()
        with self.block(f"if not {size}:" if self.flexible else f"if {size} < 0:"):
            self.line(f"{name} = None" if nullable else f'raise null_error("{wish}")')
        with self.block("else:") if nullable else nullcontext():
            if self.flexible:
                with self.block(f"if {size} > 127:"):
                    self.line(f"{size}, pos = length_rest(buf, {size}, pos)")
                    if text:
                        with self.block(f"if {size} > {TEXT_BYTES_MAX + 1}:"):
                            self.line(f"raise text_error({size} - 1)")
                self.line(f"{size} -= 1")
            yield

    def run(self, name: str, wish: str, kind: Kind, nullable: bool) -> None:
        """Read a string or a byte run: a view of ``buf`` for records, a copy otherwise."""
        size = self.source.local("size")
        read = {Kind.STRING: ".tobytes().decode()", Kind.BYTES: ".tobytes()", Kind.RECORDS: ""}[kind]
        text = kind is Kind.STRING
        with self.length(name, wish, size, "h" if text else "i", nullable, text=text):
            self.line(f"stop = pos + {size}")
            self.line(f"{name} = buf[pos:stop]{read}")
            self.line("pos = stop")

    def array(self, name: str, wish: str, element: Type, nullable: bool) -> None:
        """Read an array element by element; int32 arrays with one call."""
        count = self.source.local("count")
        with self.length(name, wish, count, "i", nullable):
            least = max(1, self.least(element))
            self.charge(count, least, _SLOT_BYTES + object_bytes(element, self.version))
            if element.kind is Kind.INT32:
                self.line(f"{name} = read_int32s(buf, pos, {count})")
                self.line(f"pos += {count} * 4")
                return
            self.line(f"{name} = []")
            with self.block(f"for _ in range({count}):"):
                if element.struct is not None:
                    made = self.struct(element.struct)
                else:
                    made = self.value(f"{wish}_item", element, nullable=False)
                self.flush()
                self.line(f"{name}.append({made})")

    def charge(self, count: str, least: int, made: int) -> None:
        """Refuse a count that the remaining bytes cannot hold, or whose elements of ``made`` bytes exceed the
        charge.
        """
        if self.counts:
            self.line(f"room -= {count} * {max(ELEMENT_BYTES_MIN, made)}")
        many = " or room < 0" if self.counts else ""
        with self.block(f"if {count} * {least} > end - pos{many}:"):
            self.line(f"check_count({count}, {least}, end - pos{', room' if self.counts else ''})")
        if self.counts and least == 1:
            with self.block(f"if {count} > {TINY_MAX} and {count} * 2 > end - pos:"):
                self.line(f"raise tiny_error({count})")

    def nested(self, name: str, cls: type[Message], nullable: bool, null: str = "< 0") -> None:
        """Read a struct field. A nullable struct stands after a byte; ``null`` is the condition for a null."""
        if not nullable:
            made = self.struct(cls)
            self.flush()
            self.line(f"{name} = {made}")
            return
        self.pending.append((name, "b"))
        self.flush()
        with self.block(f"if {name} {null}:"):
            self.line(f"{name} = None")
        with self.block("else:"):
            made = self.struct(cls)
            self.flush()
            self.line(f"{name} = {made}")

    def tags(self, tagged: list[tuple[Field, str]]) -> None:
        """Read the tagged section: known fields, and a jump over the others."""
        count = self.source.local("tags")
        self.pending.append((count, "B"))
        self.flush()
        for field, name in tagged:
            self.line(f"{name} = {self.default(field)}")
        with self.block(f"if {count}:"):
            with self.block(f"if {count} > 127:"):
                self.line(f"{count}, pos = uvarint_rest(buf, {count}, pos)")
            self.charge(count, 2, ELEMENT_BYTES_MIN)
            if not tagged:
                self.line(f"pos = skip_tags(buf, {count}, pos)")
                return
            with self.block(f"for _ in range({count}):"):
                tag, size, stop = self.source.local("tag"), self.source.local("size"), self.source.local("tag_end")
                self.line(f"{tag}, pos = read_uvarint(buf, pos)")
                self.line(f"{size}, pos = read_uvarint(buf, pos)")
                self.line(f"{stop} = pos + {size}")
                word = "if"
                for field, name in tagged:
                    with self.block(f"{word} {tag} == {field.tag}:"):
                        if field.nullable and field.type.struct is not None:
                            # In a tagged section the byte is a varint, where 0 is null.
                            self.nested(name, field.type.struct, nullable=True, null="<= 0")
                        else:
                            read = self.value(field.name, field.type, field.nullable)
                            self.flush()
                            self.line(f"{name} = {read}")
                    word = "elif"
                with self.block("else:"):
                    self.line(f"pos = {stop}")
                with self.block(f"if pos != {stop}:"):
                    self.line(f'raise ProtocolError(f"tag {{{tag}}} does not fill its {{{size}}} bytes")')

    def least(self, kind: Type, nullable: bool = False) -> int:
        """Minimum size of a value of this type on the wire."""
        match kind.kind:
            case Kind.STRING:
                return 1 if self.flexible else 2
            case Kind.BYTES | Kind.RECORDS | Kind.ARRAY:
                return 1 if self.flexible else 4
            case Kind.STRUCT:
                assert kind.struct is not None
                return 1 if nullable else self._least_struct(kind.struct)
            case fixed:
                return fixed.size

    def _least_struct(self, cls: type[Message]) -> int:
        fields = [field for field in fields_of(cls, self.version) if field.present]
        plain = [field for field in fields if not (self.flexible and field.tag is not None)]
        return sum(self.least(field.type, field.nullable) for field in plain) + (1 if self.flexible else 0)
