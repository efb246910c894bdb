"""The table of routes as an OpenAPI 3.1 document, for clients and their generators.

Schemas are msgspec's, which are JSON Schema 2020-12. Mounted parts (the schema registry) have an API of their own and
are not in it. ``x-millstream-right`` names the right of the caller on Kafka's resources; an open route has none.
"""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final, cast

import msgspec

from millstream.admin.bodies import Failure
from millstream.admin.declared import Declared
from millstream.admin.routing import JSON, RESOURCE_WORDS, Right

VERSION: Final = "3.1.0"
_REF: Final = "#/components/schemas/{name}"
_FAILURES: Final = {
    "400": "The request is not understood, or the broker rejects it.",
    "401": "The caller did not prove who it is.",
    "403": "The caller lacks the right, or the request came from a page of another site.",
    "404": "There is no such thing.",
    "413": "The body is larger than the route takes.",
    "415": "The body is not declared as JSON.",
    "503": "The broker cannot answer now; try again.",
}
_LOGINS: Final = {
    "password": {"type": "http", "scheme": "basic"},
    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
    "certificate": {"type": "mutualTLS"},
}
_SPACES: Final = re.compile(r"\s+")


def document(routes: Sequence[Declared[Any]], version: str) -> dict[str, Any]:
    """The document of a broker of ``version``. Pure."""
    types = [each for route in routes for each in (route.body, route.answer, route.unwell) if each is not None]
    schemas, components = msgspec.json.schema_components([*types, Failure], ref_template=_REF)
    by_type = dict(zip(map(repr, [*types, Failure]), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": VERSION,
        "info": {
            "title": "Millstream admin API",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "What a broker answers on its HTTP port. Without access control no login is needed.",
        },
        "paths": paths,
        "components": {"schemas": _one_line(components), "securitySchemes": dict(_LOGINS)},
    }


def right_of(needs: Right | None) -> str:
    """A right in words; empty for a route that is open."""
    if needs is None:
        return ""
    return f"{needs.operation.name} on the {RESOURCE_WORDS[needs.resource]}"


def variables_of(path: str) -> list[str]:
    """The variable parts of a path."""
    return re.findall(r"\{(\w+)\}", path)


def _operation(route: Declared[Any], by_type: dict[str, Any]) -> dict[str, Any]:
    shown = {} if route.answer is None else {"schema": by_type[repr(route.answer)]}
    done = "Done." if route.status != HTTPStatus.ACCEPTED else "Started; GET of the same path says how far it is."
    answers: dict[str, Any] = {str(route.status): {"description": done, "content": {route.content_type: shown}}}
    for status in _failures_of(route):
        kind = route.unwell if status == "503" and route.unwell is not None else Failure
        answers[status] = {
            "description": _FAILURES[status],
            "content": {JSON: {"schema": by_type[repr(kind)]}},
        }
    found: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": f"{route.doc}.",
        "parameters": _parameters(route),
        "responses": answers,
        "security": [] if route.needs is None else [{}, *({name: []} for name in _LOGINS)],
    }
    if route.needs is not None:
        found["x-millstream-right"] = right_of(route.needs)
    if route.body is not None:
        content: dict[str, Any] = {"schema": by_type[repr(route.body)]}
        if route.example is not None:
            content["example"] = route.example
        found["requestBody"] = {"required": True, "content": {JSON: content}}
    return found


def operation_id(route: Declared[Any]) -> str:
    """A name for generated clients: ``postTiersPrepare``."""
    words = [part for part in re.split(r"[^A-Za-z0-9]+", route.path.removeprefix("/v1")) if part]
    return route.method.lower() + "".join(word[:1].upper() + word[1:] for word in words or ["page"])


def _failures_of(route: Declared[Any]) -> list[str]:
    found = ["503"]
    if route.needs is not None:
        found += ["400", "401", "403"]
    if variables_of(route.path):
        found.append("404")
    if route.method != "GET":
        found += ["413", "415"]
    return sorted(found)


def _parameters(route: Declared[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in variables_of(route.path)
    ]
    if route.query is not None:
        for field in msgspec.structs.fields(route.query):
            schema = msgspec.json.schema(field.type)
            found.append({"name": field.encode_name, "in": "query", "required": field.required, "schema": schema})
    return found


def _one_line(value: Any) -> Any:
    """The same with every text on one line."""
    if isinstance(value, str):
        return _SPACES.sub(" ", value).replace("``", "`")
    if isinstance(value, dict):
        return {key: _one_line(each) for key, each in cast("dict[str, Any]", value).items()}
    return [_one_line(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value
