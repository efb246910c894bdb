"""JSON Schemas: checked against the metaschema of their draft, with every ``$ref`` resolved.

The stored text is compact JSON in the author's order. Two texts are the same schema if their JSON is the same but for
the order of members, which the normalized form sorts. A ``$ref`` leads into the schema itself or, by name, to one of
its references; nothing is ever fetched.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urljoin

import jsonschema
import msgspec
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT7, specification_with

from millstream.registry.formats.json_differences import Place, differences
from millstream.registry.formats.parsed import InvalidSchema, Named, Parsed

_ROOT: Final = "urn:millstream:root"


class JsonSchema(msgspec.Struct, frozen=True):
    """A valid JSON Schema; ``place`` is its root with what resolves its references."""

    text: str
    identity: str
    normalized: str
    place: Any

    def differences(self, writer: Parsed) -> list[str]:
        """See ``Parsed``."""
        if not isinstance(writer, JsonSchema):
            return ["the schema type changed"]
        found = differences(writer.place, self.place)
        return [f"{{errorType:'{each.rule}', description:'at path {each.path!r}'}}" for each in found]


def parse_json_schema(text: str, references: Sequence[Named]) -> JsonSchema:
    """Check a schema; ``references`` come before what uses them.

    Raises:
        InvalidSchema: the text is not a JSON schema, or a ``$ref`` leads nowhere.
    """
    try:
        document: Any = json.loads(text)
        if not isinstance(document, dict | bool):
            raise InvalidSchema("a JSON Schema is an object, true or false")
        checker: Any = validator_for(document, jsonschema.Draft7Validator)
        checker.check_schema(document)
        place = _place(document, references)
        _resolve_all(place)
    except jsonschema.SchemaError as error:
        raise InvalidSchema(f"{error.message} (at /{'/'.join(map(str, error.absolute_path))})") from None
    except Unresolvable as error:
        raise InvalidSchema(f"$ref {error.ref!r} leads nowhere") from None
    except RecursionError:
        raise InvalidSchema("it is nested too deeply") from None
    except ValueError as error:
        raise InvalidSchema(str(error)) from error
    return JsonSchema(
        json.dumps(document, separators=(",", ":"), ensure_ascii=False),
        json.dumps(document, separators=(",", ":"), sort_keys=True),
        json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=False),
        place,
    )


def json_schema_identity(text: str) -> str:
    """The identity of a stored schema, which is not checked again."""
    return json.dumps(json.loads(text), separators=(",", ":"), sort_keys=True)


def _place(document: Any, references: Sequence[Named]) -> Place:
    def nothing(uri: str) -> Any:
        raise NoSuchResource(ref=uri)

    registry: Any = Registry(retrieve=nothing)  # pyright: ignore[reportCallIssue] (an attrs class)
    root = (_resource(document).id() if isinstance(document, dict) else None) or _ROOT  # drafts differ in its name
    registry = registry.with_resource(root, _resource(document))
    for reference in references:
        resource = _resource(json.loads(reference.schema.text))
        # A relative $ref is taken from the $id of the schema that it stands in.
        for uri in {reference.name, urljoin(root, reference.name)}:
            registry = registry.with_resource(uri, resource)
    return Place(document, registry.resolver(root), _specification(document))


def _specification(document: Any) -> Any:
    dialect = document.get("$schema") if isinstance(document, dict) else None
    return specification_with(dialect, default=DRAFT7) if isinstance(dialect, str) else DRAFT7


def _resource(document: Any) -> Any:
    return Resource.from_contents(document, default_specification=_specification(document))


def _resolve_all(place: Place) -> None:
    """Follow every ``$ref`` once.

    Raises:
        Unresolvable: one leads nowhere.
    """
    for inner in _subschemas(place):
        inner.target()


def _subschemas(place: Place) -> Iterator[Place]:
    waiting = [place]
    while waiting:
        here = waiting.pop()
        if isinstance(here.schema, dict):
            yield here
            waiting.extend(here.children())
