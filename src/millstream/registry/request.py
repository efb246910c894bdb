"""A request as it came, and what an operation reads of it: parts of the path, query, body."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from millstream.registry.model import (
    SCHEMA_TYPES,
    Reference,
    Refused,
    Schema,
    SchemaId,
    Subject,
    VersionNumber,
    invalid_schema,
    invalid_version,
)
from millstream.registry.service import Service, Submission
from millstream.registry.subjects import checked

NOT_FOUND: Final = Refused(404, 404, "HTTP 404 Not Found")
"""There is no such path."""


class HttpRequest(msgspec.Struct, frozen=True):
    """A request as it came: ``target`` is path and query; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str] = {}
    body: bytes = b""


class HttpResponse(msgspec.Struct, frozen=True):
    """A response with one body."""

    status: int
    content_type: str
    body: bytes


class Call:
    """A request that found its route: the subject and other parts of its path, its query, its body."""

    def __init__(
        self,
        service: Service,
        parts: Mapping[str, str],
        query: Sequence[tuple[str, str]],
        body: bytes,
        headers: Mapping[str, str],
    ) -> None:
        self.service = service
        self.state = service.state
        self.parts = parts
        self._pairs = query
        self._query = dict(query)
        self._body = body
        self.takes_unknown_members = headers.get("confluent-accept-unknown-properties", "").lower() == "true"

    @property
    def subject(self) -> Subject:
        """The subject of the path, or the one that it is an alias of."""
        subject = checked(self.parts["subject"])
        alias = None if self.state.versions(subject, deleted=True) else self.state.effective_config(subject).alias
        return checked(alias) if alias else subject

    @property
    def configured_subject(self) -> Subject:
        """The subject of the path as it stands there."""
        return checked(self.parts["subject"])

    @property
    def version(self) -> VersionNumber | None:
        """The version of the path; None for the latest."""
        given = self.parts["version"]
        if given in ("latest", "-1"):
            return None
        if not given.isascii() or not given.isdigit() or not 1 <= int(given[:12]) < 1 << 31:
            raise invalid_version(given)
        return VersionNumber(int(given))

    def flag(self, name: str) -> bool:
        return self._query.get(name, "").lower() == "true"

    def text(self, name: str, default: str = "") -> str:
        return self._query.get(name, default)

    def texts(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def page(self, found: Sequence[Any]) -> list[Any]:
        offset, limit = self._number("offset", 0), self._number("limit", -1)
        return list(found[max(offset, 0) :][: limit if limit >= 0 else None])

    def body(self) -> dict[str, Any]:
        try:
            decoded: object = json.loads(self._body or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refused(400, 400, f"Malformed request: {error}") from None
        if not isinstance(decoded, dict):
            raise Refused(422, 422, "Malformed request: a JSON object is expected")
        return cast("dict[str, Any]", decoded)

    def submission(self) -> Submission:
        """The schema of the body.

        Raises:
            Refused: the request has none, or a member has the wrong form.
        """
        body = self.body()
        text = body.get("schema")
        if text is None:
            raise Refused(422, 422, "Malformed request: the field schema is missing")
        kind = body.get("schemaType") or "AVRO"
        if kind not in SCHEMA_TYPES:
            raise Refused(422, 422, f"Invalid schemaType {kind}; known are {', '.join(SCHEMA_TYPES)}")
        if not isinstance(text, str) or not text.strip():
            if isinstance(text, str):
                raise Refused(422, 42201, "Empty schema")  # Confluent's words, which clients compare
            raise invalid_schema(kind, "schema has to be a string")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise invalid_schema(kind, "it is not valid UTF-8") from None
        return Submission(
            Schema(text, kind, _references(body.get("references")), _extra(body, "metadata"), _extra(body, "ruleSet")),
            SchemaId(_count(body, "id")) if body.get("id") not in (None, -1) else None,
            VersionNumber(_count(body, "version")) if body.get("version") not in (None, -1) else None,
            tuple(part for part, name in (("metadata", "metadata"), ("rule_set", "ruleSet")) if body.get(name) is None),
        )

    def _number(self, name: str, default: int) -> int:
        given = self._query.get(name, "")
        if not given:
            return default
        if not re.fullmatch(r"-?[0-9]{1,9}", given):
            raise NOT_FOUND
        return int(given)


def _references(given: Any) -> tuple[Reference, ...]:
    if given is None:
        return ()
    try:
        return tuple(msgspec.convert(given, list[Reference]))
    except msgspec.ValidationError as error:
        raise Refused(422, 422, f"Malformed references: {error}") from None


def _extra(body: Mapping[str, Any], name: str) -> str:
    given = body.get(name)
    if given is None or given == {}:
        return ""
    if not isinstance(given, dict):
        raise Refused(422, 422, f"{name} has to be a JSON object")
    return json.dumps(given, separators=(",", ":"), sort_keys=True)


def _count(body: Mapping[str, Any], name: str) -> int:
    given = body[name]
    if type(given) is not int or not 1 <= given < 1 << 31:
        raise Refused(422, 422, f"{name} has to be a number above 0")
    return given
