"""A compiled Protobuf file as the text of a ``.proto`` file.

Python clients register descriptors, people read text. The text compiles to the same descriptor again. With
``in_order`` it is the normal form of a schema: imports, options, fields, enums and their values in a fixed order, so
that texts which differ in these orders only come out equal. Messages stay where they are: records refer to them by
place.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final[dict[int, str]] = {
    _FIELD.TYPE_DOUBLE: "double", _FIELD.TYPE_FLOAT: "float", _FIELD.TYPE_INT64: "int64", _FIELD.TYPE_UINT64: "uint64",
    _FIELD.TYPE_INT32: "int32", _FIELD.TYPE_FIXED64: "fixed64", _FIELD.TYPE_FIXED32: "fixed32",
    _FIELD.TYPE_BOOL: "bool", _FIELD.TYPE_STRING: "string", _FIELD.TYPE_BYTES: "bytes", _FIELD.TYPE_UINT32: "uint32",
    _FIELD.TYPE_SFIXED32: "sfixed32", _FIELD.TYPE_SFIXED64: "sfixed64", _FIELD.TYPE_SINT32: "sint32",
    _FIELD.TYPE_SINT64: "sint64",
}  # fmt: skip
_LABELS: Final[dict[int, str]] = {
    _FIELD.LABEL_OPTIONAL: "optional ", _FIELD.LABEL_REQUIRED: "required ", _FIELD.LABEL_REPEATED: "repeated "
}  # fmt: skip
_NUMBER_END: Final = 1 << 29


def write_proto(file: Any, imported: Sequence[Any], *, in_order: bool = False) -> str:
    """The text of a ``FileDescriptorProto``; ``imported`` are the files that it needs, those that are needed first.

    Raises:
        TypeError: the descriptor refers to what is neither in it nor imported.
    """
    return "\n".join(_Writer(file, imported, in_order).lines()) + "\n"


class _Writer:
    """Writes one file. ``_classes`` knows the options that the imported files define."""

    def __init__(self, file: Any, imported: Sequence[Any], in_order: bool) -> None:
        self._file = file
        self._in_order = in_order
        self._prefix = f".{file.package}." if file.package else "."
        self._top = {message.name for message in (*file.message_type, *file.enum_type)}
        self._nested = {name for message in file.message_type for name in _nested_names(message)}
        self._pool: Any = None
        if any(each.name == "google/protobuf/descriptor.proto" for each in imported):
            self._pool = descriptor_pool.DescriptorPool()
            for each in (*imported, file):
                if each.name:
                    self._pool.Add(each)

    def lines(self) -> Iterator[str]:
        file = self._file
        if file.syntax == "editions":
            yield f'edition = "{descriptor_pb2.Edition.Name(file.edition).removeprefix("EDITION_")}";'
        else:
            yield f'syntax = "{file.syntax or "proto2"}";'
        if file.package:
            yield f"package {file.package};"
        kinds = {**dict.fromkeys(file.public_dependency, "public "), **dict.fromkeys(file.weak_dependency, "weak ")}
        imports = [f'import {kinds.get(index, "")}"{name}";' for index, name in enumerate(file.dependency)]
        yield from self._sorted(imports)
        yield from (f"option {option};" for option in self._options(file.options))
        for enum in self._by_name(file.enum_type):
            yield from self._enum(enum)
        for message in file.message_type:
            yield from self._message(message, f"message {message.name}")
        yield from self._extensions(file.extension)
        for service in self._by_name(file.service):
            yield from self._service(service)

    def _message(self, message: Any, head: str) -> Iterator[str]:
        yield f"{head} {{"
        yield from _indented(f"option {option};" for option in self._options(message.options))
        yield from _indented(self._reserved(message))
        for span in message.extension_range:
            yield f"  extensions {_span(span.start, span.end - 1, _NUMBER_END - 1)};"
        for enum in self._by_name(message.enum_type):
            yield from _indented(self._enum(enum))
        yield from _indented(self._members(message))
        yield from _indented(self._extensions(message.extension))
        yield "}"

    def _members(self, message: Any) -> Iterator[str]:
        """Fields and nested messages, such that the nested messages, with those that maps and groups make, come in the
        descriptor's order again: records name a nested message by its place in that order.
        """
        owners = {field.type_name.rpartition(".")[2]: field for field in message.field if _owns(field, message)}
        mixed = 0 < len(owners) < len(message.nested_type)
        in_order = self._in_order and not mixed
        fields = sorted(message.field, key=lambda field: field.number) if in_order else list(message.field)
        if in_order:
            fields = sorted(fields, key=lambda field: _oneof_number(field, message.field))
        written = 0
        for nested in message.nested_type:
            if nested.name not in owners:
                yield from self._message(nested, f"message {nested.name}")
            elif not in_order:
                end = fields.index(owners[nested.name]) + 1
                while end < len(fields) and _oneof_of(fields[end]) == _oneof_of(fields[end - 1]) is not None:
                    end += 1
                yield from self._fields(fields[written:end], message)
                written = max(written, end)
        yield from self._fields(fields[written:], message)

    def _fields(self, fields: Sequence[Any], message: Any) -> Iterator[str]:
        open_oneof: int | None = None
        for field in fields:
            oneof = _oneof_of(field)
            if oneof != open_oneof:
                if open_oneof is not None:
                    yield "}"
                if oneof is not None:
                    yield f"oneof {message.oneof_decl[oneof].name} {{"
                    options = self._options(message.oneof_decl[oneof].options)
                    yield from _indented(f"option {option};" for option in options)
                open_oneof = oneof
            lines = self._field(field, message, label=oneof is None)
            yield from lines if oneof is None else _indented(lines)
        if open_oneof is not None:
            yield "}"

    def _field(self, field: Any, message: Any | None, *, label: bool = True) -> Iterator[str]:
        owned = None if message is None else _owns(field, message)
        if owned is not None and field.type == _FIELD.TYPE_GROUP:
            yield from self._message(owned, f"{self._label(field, label)}group {owned.name} = {field.number}")
            return
        if owned is not None:
            key, value = owned.field
            head = f"map<{self._type(key)}, {self._type(value)}> {field.name} = {field.number}"
        else:
            head = f"{self._label(field, label)}{self._type(field)} {field.name} = {field.number}"
        options = list(self._options(field.options))
        if field.HasField("default_value"):
            options.append(f"default = {_default(field)}")
        if field.json_name and field.json_name != _default_json_name(field.name):
            options.append(f"json_name = {_quoted(field.json_name)}")
        yield head + (f" [{', '.join(options)}]" if options else "") + ";"

    def _label(self, field: Any, label: bool) -> str:
        if not label:
            return ""
        if field.label == _FIELD.LABEL_OPTIONAL and self._file.syntax in ("proto3", "editions"):
            return "optional " if field.proto3_optional else ""
        return _LABELS[field.label]

    def _type(self, field: Any) -> str:
        if field.type in _SCALARS:
            return _SCALARS[field.type]
        local = field.type_name.removeprefix(self._prefix)
        first = local.partition(".")[0]
        is_plain = field.type_name.startswith(self._prefix) and first in self._top and first not in self._nested
        return local if is_plain else field.type_name

    def _enum(self, enum: Any) -> Iterator[str]:
        yield f"enum {enum.name} {{"
        yield from _indented(f"option {option};" for option in self._options(enum.options))
        for span in enum.reserved_range:
            yield f"  reserved {_span(span.start, span.end, 2**31 - 1)};"
        yield from _indented(self._reserved_names(enum))
        values = (
            sorted(enum.value, key=lambda value: (value.number != 0, value.number)) if self._in_order else enum.value
        )
        for value in values:
            options = ", ".join(self._options(value.options))
            yield f"  {value.name} = {value.number}" + (f" [{options}]" if options else "") + ";"
        yield "}"

    def _extensions(self, extensions: Sequence[Any]) -> Iterator[str]:
        for extension in self._by_name(extensions):
            yield f"extend {extension.extendee} {{"
            yield from _indented(self._field(extension, None))
            yield "}"

    def _service(self, service: Any) -> Iterator[str]:
        yield f"service {service.name} {{"
        yield from _indented(f"option {option};" for option in self._options(service.options))
        for method in self._by_name(service.method):
            takes = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
            gives = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
            end = " {" if method.HasField("options") else ";"
            yield f"  rpc {method.name} ({takes}) returns ({gives}){end}"
            if method.HasField("options"):
                yield from _indented(_indented(f"option {option};" for option in self._options(method.options)))
                yield "  }"
        yield "}"

    def _reserved(self, message: Any) -> Iterator[str]:
        for span in message.reserved_range:
            yield f"reserved {_span(span.start, span.end - 1, _NUMBER_END - 1)};"
        yield from self._reserved_names(message)

    def _reserved_names(self, described: Any) -> Iterator[str]:
        if described.reserved_name:
            plain = self._file.syntax == "editions"  # where they are identifiers
            yield f"reserved {', '.join(name if plain else _quoted(name) for name in described.reserved_name)};"

    def _options(self, options: Any) -> Iterator[str]:
        """Options as ``name = value``; those that a file defines have their full name in brackets."""
        if self._pool is not None:
            kind = self._pool.FindMessageTypeByName(options.DESCRIPTOR.full_name)
            options = message_factory.GetMessageClass(kind).FromString(options.SerializeToString())
        found = [option for option in options.ListFields() if option[0].name != "map_entry"]
        for field, value in sorted(found, key=lambda option: option[0].full_name) if self._in_order else found:
            name = f"(.{field.full_name})" if field.is_extension else field.name
            for each in value if field.is_repeated else (value,):
                yield f"{name} = {_value(field, each)}"

    def _by_name(self, described: Sequence[Any]) -> Sequence[Any]:
        return sorted(described, key=lambda each: each.name) if self._in_order else described

    def _sorted(self, lines: list[str]) -> list[str]:
        return sorted(lines) if self._in_order else lines


def _owns(field: Any, message: Any) -> Any | None:
    """The nested message that a map or a group makes, if the field is one."""
    if field.type not in (_FIELD.TYPE_MESSAGE, _FIELD.TYPE_GROUP):
        return None
    name = field.type_name.rpartition(".")[2]
    for nested in message.nested_type:
        if nested.name == name and field.type_name.endswith(f".{message.name}.{name}"):
            return nested if nested.options.map_entry or field.type == _FIELD.TYPE_GROUP else None
    return None


def _oneof_of(field: Any) -> int | None:
    """The oneof that a field is in; a proto3 ``optional`` has one of its own, which is in no source."""
    return field.oneof_index if field.HasField("oneof_index") and not field.proto3_optional else None


def _oneof_number(field: Any, fields: Sequence[Any]) -> int:
    """Where a field is put: a oneof stands where its lowest number is."""
    oneof = _oneof_of(field)
    return field.number if oneof is None else min(other.number for other in fields if _oneof_of(other) == oneof)


def _nested_names(message: Any) -> Iterator[str]:
    for nested in message.nested_type:
        yield nested.name
        yield from _nested_names(nested)
    yield from (enum.name for enum in message.enum_type)


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _span(first: int, last: int, largest: int) -> str:
    return str(first) if first == last else f"{first} to {'max' if last == largest else last}"


def _quoted(text: str) -> str:
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{escaped}"'


def _default(field: Any) -> str:
    if field.type == _FIELD.TYPE_STRING:
        return _quoted(field.default_value)
    return f'"{field.default_value}"' if field.type == _FIELD.TYPE_BYTES else field.default_value


def _default_json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _value(field: Any, value: Any) -> str:
    if field.message_type is not None:
        return f"{{ {text_format.MessageToString(value, as_one_line=True)} }}"
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return _quoted(value.decode("latin-1"))
    return _quoted(value) if isinstance(value, str) else str(value)
