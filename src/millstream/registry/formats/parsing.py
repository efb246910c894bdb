"""From a schema to what the registry knows of it: its format's parser, with the schemas that it refers to."""

from collections.abc import Callable

from millstream.registry.formats.avro_format import avro_identity, parse_avro
from millstream.registry.formats.json_format import json_schema_identity, parse_json_schema
from millstream.registry.formats.parsed import InvalidSchema, Named, Parsed
from millstream.registry.formats.protobuf_format import parse_protobuf
from millstream.registry.model import REFERENCES_MAX, Reference, Schema

Find = Callable[[Reference], Schema]
"""The schema that a reference leads to; raises InvalidSchema if it does not exist."""


def parse(schema: Schema, find: Find, *, stored: bool = False) -> Parsed:
    """Check a schema with everything that it refers to; a ``stored`` one a little less strictly.

    Raises:
        InvalidSchema: it is not valid, or a reference leads nowhere.
    """
    references = resolve(schema, find)
    match schema.type:
        case "AVRO":
            return parse_avro(schema.text, references, stored=stored)
        case "JSON":
            return parse_json_schema(schema.text, references)
        case "PROTOBUF":
            return parse_protobuf(schema.text, references)


def resolve(schema: Schema, find: Find) -> list[Named]:
    """The schemas that a schema refers to, directly and through others, each before those that use it.

    Raises:
        InvalidSchema: one is missing or of another format, they are too many, or they go in a circle.
    """
    found: dict[str, Named] = {}
    under_way: set[Reference] = set()

    def visit(holder: Schema) -> None:
        for reference in holder.references:
            if reference.name in found:
                continue
            if reference in under_way or len(under_way) + len(found) >= REFERENCES_MAX:
                raise InvalidSchema(f"the references go in a circle, or are more than {REFERENCES_MAX}")
            under_way.add(reference)
            target = find(reference)
            if target.type != schema.type:
                raise InvalidSchema(f"the reference {reference.name!r} leads to a schema of type {target.type}")
            visit(target)
            found[reference.name] = Named(reference.name, target)

    visit(schema)
    return list(found.values())


def identity_of(schema: Schema, find: Find) -> str:
    """The identity of a stored schema; its text where it is not valid, as one of another registry may be."""
    try:
        match schema.type:
            case "AVRO":
                content = avro_identity(schema.text)
            case "JSON":
                content = json_schema_identity(schema.text)
            case "PROTOBUF":
                content = parse(schema, find).identity
    except (InvalidSchema, ValueError, TypeError, RecursionError):
        content = schema.text
    return full_identity(schema, content)


def full_identity(schema: Schema, content: str) -> str:
    """What makes two schemas one: format, content, references, metadata and rules."""
    references = "".join(f"{r.name}\0{r.subject}\0{r.version}\0" for r in schema.references)
    return "\1".join((schema.type, content, references, schema.metadata, schema.rule_set))
