"""A schema registry with Confluent's REST API, as the console reads it: subjects, versions, schemas by id.

The client needs nothing but the standard library. Decoding needs the packages of the extra ``schemas``; without them,
or without an answer, a record is shown as it is and says why. Schemas by id never change, so ``CACHED_MAX`` of them are
kept. A failed look-up is kept for ``RETRY_S``, so that a registry that is down costs one wait and not one a record.
"""

import io
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

from millstream.client.schema_registry import RegistryAccess, RegistryRefused, ask
from millstream.errors import MillstreamError, Rejected
from millstream.wire.varint import read_varlong

CACHED_MAX: Final = 1000
RETRY_S: Final = 10.0
_TIMEOUT_S: Final = 5.0
_DEPTH_MAX: Final = 16


class Decoded(NamedTuple):
    """A document and its format, or the reason for none."""

    document: Any
    format: str
    reason: str


class Registry:
    """A registry. Safe for threads."""

    def __init__(self, access: RegistryAccess) -> None:
        self.url = access.url
        self._access = access
        self._lock = threading.Lock()
        self._decoders: dict[int, Callable[[bytes], Any] | None] = {}
        self._formats: dict[int, str] = {}
        self._failed: dict[int, tuple[float, str]] = {}

    def get(self, *parts: str, query: str = "") -> Any:
        """The document at a path.

        Raises:
            Rejected: the registry refuses, with its reason.
            Unavailable: nothing answers there.
        """
        path = "/".join(urllib.parse.quote(part, safe="") for part in parts)
        try:
            return ask(self._access, "GET", f"/{path}{query}", timeout_s=_TIMEOUT_S)
        except RegistryRefused as error:
            raise Rejected(f"the schema registry says: {error.message}") from None

    def subjects(self) -> list[str]:
        """All subjects, sorted."""
        return sorted(str(name) for name in self.get("subjects"))

    def decode(self, schema_id: int, raw: bytes) -> Decoded:
        """A payload after its schema id."""
        decoder = self._decoders.get(schema_id)
        if decoder is None:
            failed = self._failed.get(schema_id)
            if failed is not None and time.monotonic() - failed[0] < RETRY_S:
                return Decoded(None, "", failed[1])
            try:
                decoder = self._load(schema_id)
            except MillstreamError as error:
                reason = error.message
            except ModuleNotFoundError as error:
                reason = f"the package {error.name} is not installed (extra schemas)"
            except Exception as error:  # noqa: BLE001 (a parser, over a schema that any client registered)
                reason = f"the schema cannot be read: {error}"
            else:
                reason = ""
            if decoder is None:
                with self._lock:
                    if len(self._failed) >= CACHED_MAX:
                        self._failed.clear()
                    self._failed[schema_id] = (time.monotonic(), reason)
                return Decoded(None, "", reason)
        try:
            return Decoded(decoder(raw), self._formats[schema_id], "")
        except Exception as error:  # noqa: BLE001 (a decoder over bytes that any client chose)
            return Decoded(None, "", f"the payload does not fit it ({type(error).__name__})")

    def _load(self, schema_id: int) -> Callable[[bytes], Any]:
        found = self.get("schemas", "ids", str(schema_id))
        kind = str(found.get("schemaType") or "AVRO").upper()
        referred = self._referred(found, 0)
        made = {"AVRO": _avro, "PROTOBUF": _protobuf, "JSON": _json}.get(kind)
        if made is None:
            raise Rejected(f"schemas of type {kind} are not known")
        decoder = made(str(found["schema"]), referred)
        with self._lock:
            if len(self._decoders) >= CACHED_MAX:
                self._decoders.clear()
            self._decoders[schema_id], self._formats[schema_id] = decoder, kind.lower()
        return decoder

    def _referred(self, found: Mapping[str, Any], depth: int) -> dict[str, str]:
        """Schemas that one refers to, by name; those that are referred to come first."""
        if depth > _DEPTH_MAX:
            raise Rejected("its references go too deep")
        schemas: dict[str, str] = {}
        for reference in found.get("references") or ():
            one = self.get("subjects", str(reference["subject"]), "versions", str(reference["version"]))
            schemas.update(self._referred(one, depth + 1))
            schemas[str(reference["name"])] = str(one["schema"])
        return schemas


def _avro(text: str, referred: Mapping[str, str]) -> Callable[[bytes], Any]:
    import fastavro

    named: dict[str, Any] = {}
    for schema in referred.values():
        fastavro.parse_schema(json.loads(schema), named)
    parsed = fastavro.parse_schema(json.loads(text), named)
    if _unbounded(parsed, named, set()):
        raise Rejected("it has arrays of items that take no bytes, so a short payload can claim any number of them")

    def decode(raw: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(raw[5:]), parsed, None)

    return decode


def _unbounded(schema: Any, named: Mapping[str, Any], seen: set[str]) -> bool:
    """Whether an array somewhere in a parsed Avro schema has items that take no bytes."""
    if isinstance(schema, list):
        return any(_unbounded(branch, named, seen) for branch in cast("list[Any]", schema))
    if isinstance(schema, str):
        if schema not in named or schema in seen:
            return False
        seen.add(schema)
        return _unbounded(named[schema], named, seen)
    kind = schema["type"]
    if kind == "array" and _takes_nothing(schema["items"], named, 0):
        return True
    inner = [field["type"] for field in schema.get("fields", ())]
    inner += [schema[name] for name in ("items", "values") if name in schema]
    inner += [kind] if isinstance(kind, dict | list) else []
    return any(_unbounded(one, named, seen) for one in inner)


def _takes_nothing(schema: Any, named: Mapping[str, Any], depth: int) -> bool:
    """Whether a value of a parsed Avro schema can have no bytes. A schema that nests too deep counts as such."""
    if depth > _DEPTH_MAX:
        return True
    if isinstance(schema, str):
        return schema == "null" or (schema in named and _takes_nothing(named[schema], named, depth + 1))
    if isinstance(schema, list):
        return False  # the number of the branch takes a byte
    kind = schema["type"]
    if kind in ("record", "error"):
        return all(_takes_nothing(field["type"], named, depth + 1) for field in schema["fields"])
    if kind == "fixed":
        return schema["size"] == 0
    return kind == "null" if isinstance(kind, str) else _takes_nothing(kind, named, depth + 1)


def _json(text: str, referred: Mapping[str, str]) -> Callable[[bytes], Any]:
    _ = text, referred
    return lambda raw: json.loads(raw[5:])


def _protobuf(text: str, referred: Mapping[str, str]) -> Callable[[bytes], Any]:
    from google.protobuf import json_format, message_factory

    from millstream.registry.formats.parsed import Named
    from millstream.registry.formats.protobuf_format import ROOT, parse_protobuf, pool_of
    from millstream.registry.model import Schema

    known: list[Named] = []
    for name, schema in referred.items():
        known.append(Named(name, Schema(schema, "PROTOBUF")))
    file = pool_of(parse_protobuf(text, known)).FindFileByName(ROOT)

    def decode(raw: bytes) -> Any:
        places, at = _message_places(raw)
        messages = list(file.message_types_by_name.values())
        chosen = messages[places[0]]
        for place in places[1:]:
            chosen = chosen.nested_types[place]
        message = message_factory.GetMessageClass(chosen)()
        message.ParseFromString(raw[at:])
        return json_format.MessageToDict(message, preserving_proto_field_name=True)

    return decode


def _message_places(raw: bytes) -> tuple[list[int], int]:
    """Which message of the schema follows: places among the messages, from the outermost in; and its position."""
    count, at = read_varlong(raw, 5)
    if count == 0:
        return [0], at
    places: list[int] = []
    for _ in range(min(count, _DEPTH_MAX)):
        place, at = read_varlong(raw, at)
        places.append(place)
    return places, at
