"""Whether one Protobuf schema reads what another one wrote, by the rules that Confluent publishes.

Fields are matched by number. A field may come, go and change its name; it may change its type within a group that has
one encoding (``int32``, ``int64``, ``uint32``, ``uint64``, ``bool`` and enums; ``sint32``, ``sint64``; ``string``,
``bytes``; the fixed ones of a size). A deleted message, a required field that comes or goes, a field that was taken
from a oneof and fields that start to exclude each other are differences.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from google.protobuf import descriptor_pb2

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_GENERAL: Final = "general number"
_SCALAR_KIND: Final[dict[int, str]] = {
    **dict.fromkeys(
        (
            _FIELD.TYPE_INT32, _FIELD.TYPE_INT64, _FIELD.TYPE_UINT32, _FIELD.TYPE_UINT64,
            _FIELD.TYPE_BOOL, _FIELD.TYPE_ENUM,
        ),
        _GENERAL,
    ),
    _FIELD.TYPE_SINT32: "signed number", _FIELD.TYPE_SINT64: "signed number",
    _FIELD.TYPE_STRING: "string or bytes", _FIELD.TYPE_BYTES: "string or bytes",
    _FIELD.TYPE_FIXED32: "fixed 32", _FIELD.TYPE_SFIXED32: "fixed 32",
    _FIELD.TYPE_FIXED64: "fixed 64", _FIELD.TYPE_SFIXED64: "fixed 64",
    _FIELD.TYPE_FLOAT: "float", _FIELD.TYPE_DOUBLE: "double",
}  # fmt: skip


class Difference(msgspec.Struct, frozen=True):
    """A rule that is broken, and where in the schema."""

    rule: str
    path: str


def differences(original: Sequence[Any], update: Sequence[Any]) -> list[Difference]:
    """Why ``update`` does not read what was written with ``original``.

    Args:
        original: the schema's ``FileDescriptorProto``, then those that it imports.
        update: the same of the reader.
    """
    return list(_Comparison(_Types(original), _Types(update)).files())


class _Types:
    """The messages of a schema, by full name with a leading dot and by name without the package."""

    def __init__(self, files: Sequence[Any]) -> None:
        self.file = files[0]
        self.messages: dict[str, Any] = {}
        self.local: dict[str, str] = {}
        for file in files:
            prefix = f".{file.package}" if file.package else ""
            for name, message in _messages(file.message_type, ""):
                self.messages[prefix + name] = message
                self.local[prefix + name] = name

    def map_entry(self, field: Any) -> Any | None:
        found = self.messages.get(field.type_name) if field.type == _FIELD.TYPE_MESSAGE else None
        return found if found is not None and found.options.map_entry else None


def _messages(messages: Sequence[Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for message in messages:
        yield f"{prefix}.{message.name}", message
        yield from _messages(message.nested_type, f"{prefix}.{message.name}")


class _Comparison:
    """One comparison. A message of an imported file is compared where a field uses it, each pair once."""

    def __init__(self, original: _Types, update: _Types) -> None:
        self._original = original
        self._update = update
        self._seen: set[tuple[str, str]] = set()

    def files(self) -> Iterator[Difference]:
        yield from self._definitions(self._original.file.message_type, self._update.file.message_type, "#/")

    def _definitions(self, original: Sequence[Any], update: Sequence[Any], path: str) -> Iterator[Difference]:
        later = {message.name: message for message in update}
        for message in original:
            where = f"{path}{message.name}/"
            if message.options.map_entry:
                continue
            if message.name not in later:
                yield Difference("MESSAGE_REMOVED", where)
                continue
            yield from self._message(message, later[message.name], where)
            yield from self._definitions(message.nested_type, later[message.name].nested_type, where)

    def _message(self, original: Any, update: Any, path: str) -> Iterator[Difference]:
        before: dict[int, Any] = {field.number: field for field in original.field}
        after: dict[int, Any] = {field.number: field for field in update.field}
        yield from self._oneofs(original, update, before, after, path)
        for number in sorted(before.keys() | after.keys()):
            where = f"{path}{number}"
            earlier, later = before.get(number), after.get(number)
            if earlier is not None and later is not None:
                yield from self._field(earlier, later, where)
            elif later is not None and later.label == _FIELD.LABEL_REQUIRED:
                yield Difference("REQUIRED_FIELD_ADDED", where)
            elif earlier is not None and earlier.label == _FIELD.LABEL_REQUIRED:
                yield Difference("REQUIRED_FIELD_REMOVED", where)

    def _oneofs(
        self, original: Any, update: Any, before: Mapping[int, Any], after: Mapping[int, Any], path: str
    ) -> Iterator[Difference]:
        of_original = {number: name for number, field in before.items() if (name := _oneof(original, field))}
        of_update = {number: name for number, field in after.items() if (name := _oneof(update, field))}
        surviving = {name for number, name in of_original.items() if number in after}
        kept = surviving | {decl.name for decl in update.oneof_decl}
        for number, name in of_original.items():
            if number not in after and name in kept:
                yield Difference("ONEOF_FIELD_REMOVED", f"{path}{name}/{number}")
        for oneof in dict.fromkeys(of_update.values()):
            members = [number for number, name in of_update.items() if name == oneof and number in before]
            origins = {of_original.get(number, f"field {number}") for number in members}
            if len(origins) > 1:
                moved = sum(number not in of_original for number in members)
                rule = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if moved > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
                yield Difference(rule, f"{path}{oneof}")

    def _field(self, original: Any, update: Any, path: str, *, labels: bool = True) -> Iterator[Difference]:
        before, after = self._original.map_entry(original), self._update.map_entry(update)
        if (before is None) != (after is None):
            yield Difference("FIELD_KIND_CHANGED", path)
        elif before is not None and after is not None:
            for earlier, later in zip(before.field, after.field, strict=True):
                yield from self._field(earlier, later, path, labels=False)
        elif (original.type in _SCALAR_KIND) != (update.type in _SCALAR_KIND):
            yield Difference("FIELD_KIND_CHANGED", path)
        elif original.type in _SCALAR_KIND:
            yield from _scalars(original, update, path, labels=labels)
        else:
            yield from self._named(original.type_name, update.type_name, path)

    def _named(self, original: str, update: str, path: str) -> Iterator[Difference]:
        if self._original.local.get(original, original) != self._update.local.get(update, update):
            yield Difference("FIELD_NAMED_TYPE_CHANGED", path)
            return
        before, after = self._original.messages.get(original), self._update.messages.get(update)
        if before is None or after is None or (original, update) in self._seen:
            return
        self._seen.add((original, update))
        if any(True for _ in self._message(before, after, path)):
            yield Difference("FIELD_NAMED_TYPE_CHANGED", path)


def _oneof(message: Any, field: Any) -> str | None:
    """The oneof that a field is in; a proto3 ``optional`` has one of its own, which is in no source."""
    is_member = field.HasField("oneof_index") and not field.proto3_optional
    return message.oneof_decl[field.oneof_index].name if is_member else None


def _scalars(original: Any, update: Any, path: str, *, labels: bool) -> Iterator[Difference]:
    kind = _SCALAR_KIND[original.type]
    if kind != _SCALAR_KIND[update.type]:
        yield Difference("FIELD_SCALAR_KIND_CHANGED", path)
    elif labels and kind != "string or bytes" and _label(original) != _label(update):
        yield Difference("FIELD_NUMERIC_LABEL_CHANGED", path)


def _label(field: Any) -> bool:
    return field.label == _FIELD.LABEL_REPEATED
