"""Protobuf schemas, compiled by protoc itself.

A schema comes as the text of a ``.proto`` file, or, from Python clients, as a file descriptor in Base64; the latter is
written as text and compiled like any other. The stored text is the author's, or the one written. Two texts are the same
schema if they compile to the same descriptor, so comments and spaces do not count. Imports are found by the names of
the references; ``google/protobuf``, ``google/type`` and ``confluent`` are always there.

protoc runs inside this process (6 ms a file) and reads and writes files in a temporary directory. What it says of an
error goes to the process's standard error, which is redirected until it ends: not for a process with other threads that
write there.
"""

from __future__ import annotations

import base64
import binascii
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import grpc_tools
import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from grpc_tools import protoc

from millstream.registry.formats.parsed import InvalidSchema, Named, Parsed
from millstream.registry.formats.protobuf_differences import differences
from millstream.registry.formats.protobuf_text import write_proto

ROOT: Final = "millstream_root.proto"
"""The name of the compiled file; a schema has none of its own."""

_INCLUDED: Final = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
_ERRORS_MAX: Final = 2000


class ProtobufSchema(msgspec.Struct, frozen=True):
    """A valid Protobuf schema: its compiled file, and the files that it imports, those that are imported first."""

    text: str
    identity: str
    normalized: str
    file: Any
    imported: tuple[Any, ...]

    def differences(self, writer: Parsed) -> list[str]:
        """See ``Parsed``."""
        if not isinstance(writer, ProtobufSchema):
            return ["the schema type changed"]
        found = differences((writer.file, *writer.imported), (self.file, *self.imported))
        return [f"{{errorType:'{each.rule}', description:'at path {each.path!r}'}}" for each in found]

    def serialized(self) -> str:
        """The descriptor in Base64, as Python clients want it."""
        plain = descriptor_pb2.FileDescriptorProto()
        plain.CopyFrom(self.file)
        _drop_json_names(plain.message_type)
        return base64.b64encode(plain.SerializeToString(deterministic=True)).decode()


def parse_protobuf(text: str, references: Sequence[Named]) -> ProtobufSchema:
    """Compile a schema; ``references`` come before what uses them.

    Raises:
        InvalidSchema: protoc refuses it, with protoc's reasons.
    """
    files = {reference.name: reference.schema.text for reference in references}
    for name in files:
        if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
            raise InvalidSchema(f"the reference {name!r} is no path that a schema can import")
    for name, content in list(files.items()):
        descriptor = _from_base64(content)
        if descriptor is not None:
            files[name] = write_proto(descriptor, list(_compiled_files(files, descriptor.dependency)))
    descriptor = _from_base64(text)
    if descriptor is not None:
        text = _written(descriptor, files)
    *imported, file = _compile(text, files)
    normalized = write_proto(file, imported, in_order=True)
    return ProtobufSchema(text, _identity(file), normalized, file, tuple(imported))


def pool_of(schema: ProtobufSchema) -> descriptor_pool.DescriptorPool:
    """A pool of its own with the schema's file (``ROOT``) and everything that it imports."""
    pool = descriptor_pool.DescriptorPool()
    for file in (*schema.imported, schema.file):
        pool.Add(file)
    return pool


def _from_base64(text: str) -> Any | None:
    """The descriptor that a text is; None for the text of a ``.proto`` file."""
    if not text or any(character in text for character in " \n;{"):
        return None
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None


def _written(descriptor: Any, files: dict[str, str]) -> str:
    try:
        return write_proto(descriptor, list(_compiled_files(files, descriptor.dependency)))
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidSchema(f"the file descriptor is not valid: {error}") from error


def _compiled_files(files: dict[str, str], names: Sequence[str]) -> list[Any]:
    if not names:
        return []
    imports = "".join(f'import "{name}";\n' for name in names)
    return _compile(f'syntax = "proto3";\n{imports}', files)[:-1]


def _identity(file: Any) -> str:
    plain = descriptor_pb2.FileDescriptorProto()
    plain.CopyFrom(file)
    plain.name = ""
    plain.ClearField("source_code_info")
    _drop_json_names(plain.message_type)
    return base64.b64encode(plain.SerializeToString(deterministic=True)).decode()


def _drop_json_names(messages: Any) -> None:
    """Protoc names every field for JSON, Python's generated code only those that are named otherwise."""
    for message in messages:
        for field in (*message.field, *message.extension):
            if field.json_name == _json_name(field.name):
                field.ClearField("json_name")
        _drop_json_names(message.nested_type)


def _json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _compile(text: str, files: dict[str, str]) -> list[Any]:
    """The compiled file, after everything that it imports.

    Raises:
        InvalidSchema: protoc refuses it.
    """
    with tempfile.TemporaryDirectory(prefix="millstream-proto-") as folder:
        for name, content in {**_confluent_files(), **files, ROOT: text}.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
        out = os.path.join(folder, "out.bin")
        arguments = ["protoc", f"-I{folder}", f"-I{_INCLUDED}", *_google_types(), "--include_imports"]
        failed, said = _run([*arguments, f"--descriptor_set_out={out}", ROOT])
        if failed:
            raise InvalidSchema(
                said.replace(f"{folder}/", "").replace(f"{ROOT}:", "line ").strip()[:_ERRORS_MAX] or "protoc refuses it"
            )
        with open(out, "rb") as file:
            return list(descriptor_pb2.FileDescriptorSet.FromString(file.read()).file)


def _run(arguments: list[str]) -> tuple[int, str]:
    """Protoc's exit code and what it wrote to standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            code = int(protoc.main(arguments))
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        return code, said.read(10 * _ERRORS_MAX).decode(errors="replace")


@lru_cache(maxsize=1)
def _google_types() -> list[str]:
    """Where ``google/type/*.proto`` are: their package brings them along with its modules."""
    from google.type import date_pb2

    folder = os.path.dirname(os.path.abspath(date_pb2.__file__))
    return [f"-I{os.path.dirname(os.path.dirname(folder))}"]


@lru_cache(maxsize=1)
def _confluent_files() -> dict[str, str]:
    """Confluent's own files, which come as compiled modules only."""
    from confluent_kafka.schema_registry.confluent import meta_pb2
    from confluent_kafka.schema_registry.confluent.type import decimal_pb2, variant_pb2

    found: dict[str, str] = {}
    for module in (meta_pb2, decimal_pb2, variant_pb2):
        descriptor = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        needed = [descriptor_pb2.FileDescriptorProto.FromString(descriptor_pb2.DESCRIPTOR.serialized_pb)]
        found[descriptor.name] = write_proto(descriptor, needed)
    return found
