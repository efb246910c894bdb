"""Avro schemas, by Apache Avro's own library: parsing, and whether one schema can read what another one wrote.

The stored text is compact JSON in the author's order. Two texts are the same schema if their JSON is the same but for
the order of members and for ``{"type": "string"}``, or one with a name, in place of ``"string"``. The normalized form
also writes every name in full and brings attributes into the order of Avro's Parsing Canonical Form; documentation and
other attributes stay, because programs read them.

Of a new schema also the names of fields and the defaults are checked, by the rules of Avro's Java library, which
Confluent's registry has: a name is letters, digits and underscores and does not start with a digit, and a default is a
value of its type, or of any branch of a union. A schema that is stored is not checked for that.
"""

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.constants import PRIMITIVE_TYPES
from avro.errors import AvroException
from avro.name import Names
from avro.schema import make_avsc_object

from millstream.registry.formats.parsed import InvalidSchema, Named, Parsed

_ORDER: Final = ("name", "type", "doc", "aliases", "fields", "symbols", "items", "values", "size", "default", "order")
_RESERVED: Final = frozenset((*_ORDER, "namespace")) - {"default", "order"}
"""Members that mean nothing in a simple type; Avro drops them there, and keeps all others as attributes."""
_NAMED: Final = ("record", "enum", "fixed", "error")


class AvroSchema(msgspec.Struct, frozen=True):
    """A valid Avro schema; ``tree`` is the library's object."""

    text: str
    identity: str
    normalized: str
    tree: Any

    def differences(self, writer: Parsed) -> list[str]:
        """See ``Parsed``. Schema resolution as the Avro specification has it, "Schema Resolution"."""
        if not isinstance(writer, AvroSchema):
            return ["the schema type changed"]
        result: Any = ReaderWriterCompatibilityChecker().get_compatibility(self.tree, writer.tree)
        if result.compatibility is SchemaCompatibilityType.compatible:
            return []
        kinds = ", ".join(sorted({str(kind.value).upper() for kind in result.incompatibilities})) or "INCOMPATIBLE"
        where, why = ", ".join(sorted(result.locations)), "; ".join(sorted(result.messages))
        return [f"{{errorType:'{kinds}', description:'{why}', location:'{where}'}}"]


def parse_avro(text: str, references: Sequence[Named], *, stored: bool = False) -> AvroSchema:
    """Check a schema; ``references`` come before what uses them. Names of a ``stored`` one may be of any form: other
    registries have taken such.

    Raises:
        InvalidSchema: the text is not an Avro schema, or a name in it is not defined.
    """
    names: Any = Names(validate_names=not stored)
    full_names: set[str] = set()
    try:
        for reference in references:
            definition = json.loads(reference.schema.text)
            _make(definition, names, stored)
            _rewrite(definition, "", full_names, full=True)
        definition: Any = json.loads(text)
        tree = _make(definition, names, stored)
        for each in _all_in(tree, set()):
            _qualify_aliases(each)
            if not stored:
                _check_fields(each)
        plain = _rewrite(definition, "", full_names, full=False)
        normal = _rewrite(definition, "", full_names, full=True)
    except (AvroException, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvalidSchema(str(error) or repr(error)) from error
    except RecursionError:
        raise InvalidSchema("it is nested too deeply") from None
    return AvroSchema(
        json.dumps(definition, separators=(",", ":"), ensure_ascii=False),
        json.dumps(plain, separators=(",", ":"), sort_keys=True),
        json.dumps(normal, separators=(",", ":"), ensure_ascii=False),
        tree,
    )


_NAME: Final = re.compile(r"[^\W\d]\w*")
_INT_BITS: Final = {"int": 32, "long": 64}


def _all_in(schema: Any, seen: set[int]) -> Iterator[Any]:
    """A schema and every one within it, each once."""
    if id(schema) in seen:
        return
    seen.add(id(schema))
    yield schema
    fields = [field.type for field in getattr(schema, "fields", ())]
    for inner in (
        *fields,
        *getattr(schema, "schemas", ()),
        getattr(schema, "items", None),
        getattr(schema, "values", None),
    ):
        if inner is not None and not callable(inner):
            yield from _all_in(inner, seen)


def _qualify_aliases(schema: Any) -> None:
    """Give the aliases of a name its namespace, as the specification has it; the library compares them as they are."""
    aliases = schema.props.get("aliases") if schema.type in _NAMED else None
    if isinstance(aliases, list):
        namespace = schema.fullname.rpartition(".")[0]
        schema.props["aliases"] = [f"{namespace}.{each}" if namespace and "." not in each else each for each in aliases]


def _check_fields(schema: Any) -> None:
    """Check the names and the defaults of a record's fields.

    Raises:
        InvalidSchema: a name or a default is not valid.
    """
    for field in getattr(schema, "fields", ()):
        if not _NAME.fullmatch(field.name):
            what = "character in" if _NAME.match(field.name) else "initial character"
            raise InvalidSchema(f"Illegal {what}: {field.name}")
        if field.has_default and not _is_value(field.default, field.type):
            raise InvalidSchema(
                f"Invalid default for field {field.name}: {json.dumps(field.default)} not a {field.type}"
            )


def _is_value(value: Any, schema: Any) -> bool:
    """Whether a JSON value is one of a schema, as defaults are written."""
    kind = schema.type
    if kind in ("union", "error_union"):
        return any(_is_value(value, branch) for branch in schema.schemas)
    if kind in _INT_BITS:
        limit = 1 << (_INT_BITS[kind] - 1)
        return type(value) is int and -limit <= value < limit
    if kind in ("float", "double"):
        return type(value) in (int, float)
    if kind == "array":
        return isinstance(value, list) and all(_is_value(item, schema.items) for item in value)
    if kind == "map":
        return isinstance(value, dict) and all(_is_value(item, schema.values) for item in value.values())
    if kind in ("record", "error"):
        return isinstance(value, dict) and all(
            (field.name in value or field.has_default) and _is_value(value.get(field.name, field.default), field.type)
            for field in schema.fields
        )
    return isinstance(value, {"null": type(None), "boolean": bool}.get(kind, str))


def avro_identity(text: str) -> str:
    """The identity of a stored schema, which is not checked again."""
    return json.dumps(_rewrite(json.loads(text), "", set(), full=False), separators=(",", ":"), sort_keys=True)


def _make(definition: Any, names: Any, stored: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unknown logical type is its plain type, says the specification
        return make_avsc_object(definition, names, validate_names=not stored)


def _rewrite(node: Any, namespace: str, names: set[str], *, full: bool) -> Any:
    """A schema with simple types written simply; with ``full``, names in full and attributes in order, too.

    ``names`` are the full names defined so far; those of ``node`` are added.
    """
    if isinstance(node, list):
        return [_rewrite(branch, namespace, names, full=full) for branch in node]
    if isinstance(node, str):
        whole = f"{namespace}.{node}" if namespace and "." not in node else node
        return whole if full and node not in PRIMITIVE_TYPES and whole in names else node
    if not isinstance(node, dict):
        return node
    kind: Any = node.get("type")
    if isinstance(kind, str) and kind in PRIMITIVE_TYPES and node.keys() <= _RESERVED:
        return kind
    out: dict[str, Any] = dict(node)
    if kind in _NAMED:
        namespace = _define(out, namespace, names, full=full)
        if isinstance(node.get("fields"), list):
            out["fields"] = [_field(field, namespace, names, full=full) for field in node["fields"]]
    elif not isinstance(kind, str):
        out["type"] = _rewrite(kind, namespace, names, full=full)
    for inner in ("items", "values"):
        if inner in node:
            out[inner] = _rewrite(node[inner], namespace, names, full=full)
    return _ordered(out) if full else out


def _define(node: dict[str, Any], namespace: str, names: set[str], *, full: bool) -> str:
    """Note the name of a definition; the namespace that holds inside of it."""
    name = str(node.get("name"))
    whole = name if "." in name else ".".join(filter(None, (node.get("namespace", namespace), name)))
    names.add(whole)
    if full:
        node["name"] = whole
        node.pop("namespace", None)
    return whole.rpartition(".")[0]


def _field(field: Any, namespace: str, names: set[str], *, full: bool) -> Any:
    if not isinstance(field, dict):
        return field
    out: dict[str, Any] = {**field, "type": _rewrite(field.get("type"), namespace, names, full=full)}
    return _ordered(out) if full else out


def _ordered(node: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: node[name] for name in _ORDER if name in node}
    return {**known, **{name: node[name] for name in sorted(node.keys() - known.keys())}}
