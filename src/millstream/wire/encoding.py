"""Generates the encoder of one message at one version.

The generated function appends to a ``bytearray``. One ``struct`` call packs adjacent fixed-size fields, empty tagged
sections and the first byte of a length after them (ProduceResponse v9, shortened)::

    name = topic.name.encode()
    size = len(name) + 1
    if size < 128:
        out += pack_B(size)
    ...
    for partition in partitions:
        out += pack_ihqqqB(partition.index, partition.error_code, ...)

With ``vectored`` the function also takes a list of ``parts``. A records field ends the current bytearray, its pieces
are passed through without a copy, and a new bytearray starts after them. Pieces of up to ``JOIN_BELOW`` bytes are
copied, because an entry of a vectored send costs more than the copy.

A field that the version lacks is not read. A value that does not fit its field raises ``struct.error``, ``TypeError``
or ``AttributeError`` here, and ``wire.codec`` turns that into ``EncodeError``.
"""

import struct
from array import array
from collections.abc import Sequence
from typing import Any

from millstream.wire.codegen import Source
from millstream.wire.schema import Field, Kind, Message, Piece, Type, fields_of
from millstream.wire.varint import uvarint

JOIN_BELOW = 512
"""Bytes below which a piece is copied. An entry of a vectored send costs about 0.15 µs, copying 512 bytes 0.03 µs."""

ERROR_TEXT_BYTES = 4096
"""Maximum size of an error message. No client reads a string of more than 32 767 bytes, and every partition may have a
message.
"""

_RESERVED = frozenset({"count", "m", "out", "parts", "piece", "section"})
_SMALL = [struct.Struct(f">{count}i").pack for count in range(17)]


def pack_int32s(numbers: Sequence[int]) -> bytes:
    """All numbers as big-endian int32."""
    count = len(numbers)
    if count < 17:
        return _SMALL[count](*numbers)
    packed = array("i", numbers)
    packed.byteswap()
    return packed.tobytes()


def pieces_of(records: Any) -> tuple[int, Sequence[Piece]]:
    """Size of a records field in bytes, and the buffers that hold it. ``schema.Records`` lists the accepted types."""
    kind = type(records)
    if kind is memoryview or kind is bytes or kind is bytearray:
        return len(records), (records,)
    pieces = records if kind is list or kind is tuple else records.views()
    return len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces)), pieces


def error_text(text: str) -> bytes:
    """The bytes of an error message, truncated to the maximum size, because a message may quote a client's text."""
    data = text.encode()
    return data if len(data) <= ERROR_TEXT_BYTES else data[:ERROR_TEXT_BYTES].decode(errors="ignore").encode()


_FUNCTIONS = {
    "JOIN_BELOW": JOIN_BELOW,
    "error_text": error_text,
    "pack_int32s": pack_int32s,
    "pieces_of": pieces_of,
    "uvarint": uvarint,
}


def encoder_source(cls: type[Message], version: int, vectored: bool = False) -> Source:
    """Source of ``encode(m, out)``, or of ``encode(m, out, parts)``, which returns the last, still open bytearray."""
    return _Encoder(cls, version, vectored).source


class _Encoder:
    def __init__(self, cls: type[Message], version: int, vectored: bool) -> None:
        self.version = version
        self.flexible = version >= cls.FLEXIBLE
        self.vectored = vectored
        self.source = source = Source(_RESERVED)
        self.line, self.block = source.line, source.block
        self.pending: list[tuple[str, str]] = []
        self.sections: list[tuple[str, list[Field]]] = []
        source.globals.update(_FUNCTIONS)
        with self.block("def encode(m, out, parts):" if vectored else "def encode(m, out):"):
            self.struct(cls, "m")
            self.flush()
            self.line("return out")
        for name, tagged in self.sections:
            self.tag_section(name, tagged)

    def flush(self, *, first_of: str | None = None) -> None:
        """Pack the pending values with one call. ``first_of`` names a compact length to pack after them."""
        waiting, self.pending = self.pending, []
        if first_of is not None:
            with self.block(f"if {first_of} < 128:"):
                self.emit([*waiting, (first_of, "B")])
            with self.block("else:"):
                self.emit(waiting)
                self.line(f"out += uvarint({first_of})")
            return
        self.emit(waiting)

    def emit(self, waiting: list[tuple[str, str]]) -> None:
        """Add one line that packs these values. Code "x" is a zero byte without a value."""
        if len(waiting) == 1 and waiting[0][1] in "Bx":
            self.line(f"out.append({waiting[0][0] or '0'})")
        elif waiting:
            pack, _ = self.source.packer([code for _, code in waiting], unpack=False)
            self.line(f"out += {pack}({', '.join(value for value, code in waiting if code != 'x')})")

    def struct(self, cls: type[Message], owner: str) -> None:
        """Encode the fields of the struct in the local variable ``owner``."""
        tagged: list[Field] = []
        for field in fields_of(cls, self.version):
            if not field.present:
                continue
            if field.tag is not None:
                tagged.append(field)
            else:
                self.value(field.name, f"{owner}.{field.name}", field.type, field.nullable)
        if self.flexible:
            self.tags(cls, owner, sorted(tagged, key=lambda field: field.tag or 0))

    def value(self, wish: str, source: str, kind: Type, nullable: bool) -> None:
        """Encode the value of the expression ``source``."""
        match kind.kind:
            case Kind.STRING | Kind.BYTES | Kind.RECORDS:
                self.run(wish, source, kind.kind, nullable)
            case Kind.ARRAY:
                assert kind.element is not None
                self.array(wish, source, kind.element, nullable)
            case Kind.STRUCT:
                assert kind.struct is not None
                self.nested(wish, source, kind.struct, nullable)
            case fixed:
                self.pending.append((source, fixed.value))

    def length(self, size: str, classic: str) -> None:
        """Encode the length in the local variable ``size``. Compact lengths already include Kafka's offset of one."""
        if self.flexible:
            self.flush(first_of=size)
        else:
            self.pending.append((size, classic))
            self.flush()

    def run(self, wish: str, source: str, kind: Kind, nullable: bool) -> None:
        """Encode a string or a byte run with its length."""
        name, size = self.source.local(wish), self.source.local("size")
        plus = " + 1" if self.flexible else ""
        pieces = kind is Kind.RECORDS
        measure = [f"{size} = len({name}){plus}"]
        if pieces:
            measure = [f"{size}, {name} = pieces_of({name})", *([f"{size} += 1"] if plus else [])]
        for_people = kind is Kind.STRING and wish == "error_message"
        encoded = source
        if kind is Kind.STRING:
            encoded = f"error_text({source})" if for_people else f"{source}.encode()"
        if nullable:
            self.line(f"{name} = {source}")
            with self.block(f"if {name} is None:"):
                self.line(f"{size} = {0 if self.flexible else -1}")
                self.line(f"{name} = {'()' if pieces else repr(b'')}")
            with self.block("else:"):
                if kind is Kind.STRING:
                    self.line(f"{name} = {f'error_text({name})' if for_people else f'{name}.encode()'}")
                for line in measure:
                    self.line(line)
        else:
            for line in [f"{name} = {encoded}", *measure]:
                self.line(line)
        self.length(size, "h" if kind is Kind.STRING else "i")
        if not pieces:
            self.line(f"out += {name}")
            return
        with self.block(f"for piece in {name}:"):
            if not self.vectored:
                self.line("out += piece")
                return
            with self.block("if len(piece) <= JOIN_BELOW:"):
                self.line("out += piece")
            with self.block("else:"):
                with self.block("if out:"):
                    self.line("parts.append(out)")
                self.line("parts.append(piece)")
                self.line("out = bytearray()")

    def array(self, wish: str, source: str, element: Type, nullable: bool) -> None:
        """Encode an array; int32 arrays with one call."""
        name, count = self.source.local(wish), self.source.local("count")
        self.line(f"{name} = {source}")
        measure = f"{count} = len({name}){' + 1' if self.flexible else ''}"
        if nullable:
            with self.block(f"if {name} is None:"):
                self.line(f"{count} = {0 if self.flexible else -1}")
                self.line(f"{name} = ()")
            with self.block("else:"):
                self.line(measure)
        else:
            self.line(measure)
        self.length(count, "i")
        if element.kind is Kind.INT32:
            self.line(f"out += pack_int32s({name})")
            return
        item = self.source.local(f"{wish}_item")
        with self.block(f"for {item} in {name}:"):
            if element.struct is not None:
                self.struct(element.struct, item)
            else:
                self.value(wish, item, element, nullable=False)
            self.flush()

    def nested(self, wish: str, source: str, cls: type[Message], nullable: bool, null: int = -1) -> None:
        """Encode a struct field. A nullable struct stands after a byte: 1, or ``null``."""
        name = self.source.local(wish)
        self.flush()
        self.line(f"{name} = {source}")
        if not nullable:
            self.struct(cls, name)
            return
        with self.block(f"if {name} is None:"):
            self.emit([(str(null), "b")])
        with self.block("else:"):
            self.pending.append(("1", "b"))
            self.struct(cls, name)
            self.flush()

    def tags(self, cls: type[Message], owner: str, tagged: list[Field]) -> None:
        """Encode the tagged section: one zero byte, unless a field differs from its default."""
        if not tagged:
            self.pending.append(("", "x"))
            return
        section = self.source.local(f"tags_of_{cls.__name__}")
        self.sections.append((section, tagged))
        waiting = list(self.pending)
        with self.block(f"if {' or '.join(self.differs(field, f'{owner}.{field.name}') for field in tagged)}:"):
            self.flush()
            self.line(f"out += {section}({owner})")
        with self.block("else:"):
            self.emit([*waiting, ("", "x")])

    def differs(self, field: Field, source: str) -> str:
        """Condition under which a tagged field is encoded."""
        default = field.default
        if default == []:
            return f"{source} is None or {source}" if field.nullable else source
        if default is None or isinstance(default, bool):
            return f"{source} is not {default}"
        if isinstance(default, int | str):
            return f"{source} != {default!r}"
        name = self.source.constant(f"DEFAULT_{field.name}", default)
        return f"({source} is not {name} and {source} != {name})"

    def tag_section(self, name: str, tagged: list[Field]) -> None:
        """Define the function that encodes a tagged section which is not empty."""
        assert not self.pending
        with self.block(f"def {name}(m):"):
            self.line("count = 0")
            self.line("section = bytearray()")
            for field in tagged:
                with self.block(f"if {self.differs(field, f'm.{field.name}')}:"):
                    self.line("out = bytearray()")
                    if field.nullable and field.type.struct is not None:
                        # In a tagged section the byte is a varint, where 0 is null.
                        self.nested(field.name, f"m.{field.name}", field.type.struct, nullable=True, null=0)
                    else:
                        self.value(field.name, f"m.{field.name}", field.type, field.nullable)
                    self.flush()
                    self.line("count += 1")
                    self.line(f"section += {uvarint(field.tag or 0)!r} + uvarint(len(out)) + out")
            self.line("return uvarint(count) + section")
