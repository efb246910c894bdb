"""Whether one JSON Schema accepts everything that another one accepts, by the rules that Confluent publishes.

``differences(original, update)`` lists why ``update`` may refuse a document that ``original`` accepts. Each rule has
Confluent's name. The comparison is by structure and errs to the safe side: two schemas that accept the same documents
in different words may be held to differ.

The rules turn on the *content model* of an object: open (other properties may hold anything), closed (no others exist),
or partially open (other properties are bound by ``patternProperties`` or a schema). A property that is added to an open
model is a difference, because the old schema allowed anything under that name.

No library is alive that does this for the drafts in use. What each pair of subschemas comes to is computed once, so
recursive schemas end; the number of pairs is bounded by ``PAIRS_MAX``, past which the answer is that it is too complex.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from referencing.exceptions import Unresolvable

PAIRS_MAX: Final = 20_000
_REFS_MAX: Final = 64

_ONE: Final = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_MANY: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_BY_NAME: Final = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties", "dependencies")


class Place(msgspec.Struct, frozen=True):
    """A schema and what its references are resolved against (``referencing``'s resolver and specification)."""

    schema: Any
    resolver: Any
    specification: Any

    def inner(self, schema: Any) -> Place:
        """A subschema of this one."""
        if not isinstance(schema, dict):
            return Place(schema, self.resolver, self.specification)
        resource = self.specification.create_resource(schema)
        return Place(schema, self.resolver.in_subresource(resource), self.specification)

    def target(self) -> Place:
        """The schema itself, or what its ``$ref`` leads to.

        Raises:
            Unresolvable: it leads nowhere, or in a circle.
        """
        here = self
        for _ in range(_REFS_MAX):
            ref = here.schema.get("$ref") if isinstance(here.schema, dict) else None
            if not isinstance(ref, str):
                return here
            found = here.resolver.lookup(ref)
            here = Place(found.contents, found.resolver, self.specification)
        raise Unresolvable(ref=str(self.schema.get("$ref")))

    def children(self) -> Iterator[Place]:
        """Every direct subschema."""
        schema = self.schema
        for keyword in _ONE:
            if keyword in schema:
                yield self.inner(schema[keyword])
        items = schema.get("items")
        if isinstance(items, dict | bool):
            yield self.inner(items)
        for keyword in (*_MANY, "items"):
            if isinstance(schema.get(keyword), list):
                yield from map(self.inner, schema[keyword])
        for keyword in _BY_NAME:
            if isinstance(schema.get(keyword), dict):
                yield from map(self.inner, schema[keyword].values())


class Difference(msgspec.Struct, frozen=True):
    """A rule that is broken, and where in the schemas."""

    rule: str
    path: str


def differences(original: Place, update: Place) -> list[Difference]:
    """Why ``update`` may refuse what ``original`` accepts; empty if it accepts everything."""
    try:
        return _Comparison().compare(original, update, "#/")
    except (Unresolvable, RecursionError):
        return [Difference("SCHEMA_TOO_COMPLEX", "#/")]


class _Comparison:
    """One comparison: what is known of pairs of subschemas. A pair that is being compared counts as compatible."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[Difference]] = {}
        self._kept: list[Place] = []  # so that no id is used twice
        self._bare: dict[int, Place] = {}

    def compare(self, original: Place, update: Place, path: str) -> list[Difference]:
        original, update = original.target(), update.target()
        if update.schema is True or update.schema == {} or original.schema is False:
            return []
        pair = (id(original.schema), id(update.schema))
        if pair not in self._known:
            if len(self._known) >= PAIRS_MAX:
                return [Difference("SCHEMA_TOO_COMPLEX", path)]
            self._kept += (original, update)
            self._known[pair] = []
            self._known[pair] = self._compare(original, update, path)
        return self._known[pair]

    def accepts(self, original: Place, update: Place) -> bool:
        return not self.compare(original, update, "")

    def _compare(self, original: Place, update: Place, path: str) -> list[Difference]:
        if update.schema is False:
            return [Difference("TYPE_CHANGED", path)]
        if original.schema is True:
            original = Place({}, original.resolver, original.specification)
        found = [*_types(original.schema, update.schema, path), *_values(original.schema, update.schema, path)]
        found += _limits(original.schema, update.schema, path)
        found += self._combined(original, update, path)
        if _may_be(original.schema, "object"):
            found += self._properties(original, update, path)
            found += self._dependencies(original, update, path)
        if _may_be(original.schema, "array"):
            found += self._items(original, update, path)
        return found + self._nots(original, update, path)

    # Objects

    def _properties(self, original: Place, update: Place, path: str) -> list[Difference]:
        before, after = _named(original, "properties"), _named(update, "properties")
        found: list[Difference] = []
        for name in [*before, *(name for name in after if name not in before)]:
            where = f"{path}properties/{name}"
            if name not in after:
                found += self._removed(before[name], update, name, where)
            elif name not in before:
                found += self._added(original, after[name], name, where)
            else:
                found += self.compare(before[name], after[name], where + "/")
        found += self._patterns(original, update, before, path)
        found += self._required(original, update, before, after, path)
        return found + self._additional(original, update, "additionalProperties", "ADDITIONAL_PROPERTIES", path)

    def _removed(self, schema: Place, update: Place, name: str, path: str) -> list[Difference]:
        covers = _covers(update, name)
        if all(self.accepts(schema, cover) for cover in covers):
            return []
        if any(cover.schema is False for cover in covers):
            return [Difference("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", path)]
        return [Difference("PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)]

    def _added(self, original: Place, schema: Place, name: str, path: str) -> list[Difference]:
        covers = _covers(original, name)
        if not covers:
            empty = schema.target().schema in (True, {})
            return [] if empty else [Difference("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", path)]
        if not any(cover.schema is False or self.accepts(cover, schema) for cover in covers):
            return [Difference("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)]
        return []

    def _patterns(self, original: Place, update: Place, named: Mapping[str, Place], path: str) -> list[Difference]:
        """Properties that ``patternProperties`` bind: the update has to accept all that the original does."""
        before, after = _named(original, "patternProperties"), _named(update, "patternProperties")
        rest_before = original.inner(original.schema.get("additionalProperties", True))
        rest_after = update.inner(update.schema.get("additionalProperties", True))
        found: list[Difference] = []
        for pattern, later in after.items():
            where = f"{path}patternProperties/{pattern}"
            if pattern in before:
                found += self.compare(before[pattern], later, where + "/")
                continue
            matching = [schema for name, schema in named.items() if _matches(pattern, name)]
            if not all(self.accepts(earlier, later) for earlier in (rest_before, *before.values(), *matching)):
                found.append(Difference("PATTERN_PROPERTY_ADDED", where))
        for pattern, earlier in before.items():
            if pattern not in after and not self.accepts(earlier, rest_after):
                found.append(Difference("PATTERN_PROPERTY_REMOVED", f"{path}patternProperties/{pattern}"))
        return found

    def _required(
        self, original: Place, update: Place, before: Mapping[str, Place], after: Mapping[str, Place], path: str
    ) -> list[Difference]:
        earlier = set(_listed(original.schema, "required"))
        found: list[Difference] = []
        for name in _listed(update.schema, "required"):
            schema = after[name].target().schema if name in after else None
            if name in earlier or (isinstance(schema, dict) and "default" in schema):
                continue
            rule = "REQUIRED_ATTRIBUTE_ADDED" if name in before else "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"
            found.append(Difference(rule, f"{path}required/{name}"))
        return found

    def _additional(self, original: Place, update: Place, keyword: str, rule: str, path: str) -> list[Difference]:
        before, after = original.schema.get(keyword, True), update.schema.get(keyword, True)
        if after in (True, {}) or before is False:
            return []
        if before in (True, {}):
            return [Difference(f"{rule}_REMOVED" if after is False else f"{rule}_NARROWED", path + keyword)]
        if after is False:
            return [Difference(f"{rule}_NARROWED", path + keyword)]
        return self.compare(original.inner(before), update.inner(after), f"{path}{keyword}/")

    def _dependencies(self, original: Place, update: Place, path: str) -> list[Difference]:
        found: list[Difference] = []
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            before, after = original.schema.get(keyword) or {}, update.schema.get(keyword) or {}
            for name, needed in after.items():
                where, earlier = f"{path}{keyword}/{name}", before.get(name)
                kind = "ARRAY" if isinstance(needed, list) else "SCHEMA"
                if earlier is None or isinstance(earlier, list) != isinstance(needed, list):
                    found.append(Difference(f"DEPENDENCY_{kind}_ADDED", where))
                elif isinstance(needed, list):
                    if not set(needed) <= set(earlier):
                        found.append(Difference("DEPENDENCY_ARRAY_EXTENDED", where))
                else:
                    found += self.compare(original.inner(earlier), update.inner(needed), where + "/")
        return found

    # Arrays

    def _items(self, original: Place, update: Place, path: str) -> list[Difference]:
        (before, rest_before), (after, rest_after) = _tuple(original.schema), _tuple(update.schema)
        found: list[Difference] = []
        for index in range(max(len(before), len(after))):
            where = f"{path}items/{index}"
            earlier = before[index] if index < len(before) else rest_before
            later = after[index] if index < len(after) else rest_after
            if index >= len(before) and earlier is False:
                continue
            if index >= len(before) and earlier in (True, {}) and later not in (True, {}):
                found.append(Difference("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", where))
            elif index >= len(after) and later is False and earlier is not False:
                found.append(Difference("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", where))
            else:
                found += self.compare(original.inner(earlier), update.inner(later), where + "/")
        if rest_after in (True, {}) or rest_before is False:
            return found
        if rest_before in (True, {}):
            rule = "ADDITIONAL_ITEMS_REMOVED" if rest_after is False else "ADDITIONAL_ITEMS_NARROWED"
            return [*found, Difference(rule, path + "items")]
        return found + self.compare(original.inner(rest_before), update.inner(rest_after), path + "items/")

    # Combinations

    def _combined(self, original: Place, update: Place, path: str) -> list[Difference]:
        found: list[Difference] = []
        for part in _parts(update, "allOf"):
            sources = [*_parts(original, "allOf"), self._without_parts(original)]
            if not any(self.accepts(source, part) for source in sources):
                found.append(Difference("PRODUCT_TYPE_EXTENDED", path + "allOf"))
        for keyword in ("anyOf", "oneOf"):
            choices = _parts(update, keyword)
            if choices:
                found += self._choices(original, choices, keyword, path)
        if "if" in update.schema and any(
            original.schema.get(keyword) != update.schema.get(keyword) for keyword in ("if", "then", "else")
        ):
            found.append(Difference("CONDITIONAL_CHANGED", path + "if"))
        return found

    def _choices(self, original: Place, choices: Sequence[Place], keyword: str, path: str) -> list[Difference]:
        sources = _parts(original, keyword) or (_parts(original, "oneOf") if keyword == "anyOf" else [])
        if not sources:
            rest = self._without_parts(original)
            if any(self.accepts(rest, choice) for choice in choices):
                return []
            if any(self.accepts(part, choice) for part in _parts(original, "allOf") for choice in choices):
                return []
            return [Difference("COMBINED_TYPE_CHANGED", path + keyword)]
        if not _each_has_its_own(sources, choices, self.accepts):
            rule = "SUM_TYPE_NARROWED" if len(sources) > len(choices) else "COMBINED_TYPE_SUBSCHEMAS_CHANGED"
            return [Difference(rule, path + keyword)]
        return []

    def _without_parts(self, place: Place) -> Place:
        """The schema but for its ``allOf``; one object for one schema, so that pairs with it are known again."""
        if "allOf" not in place.schema:
            return place
        if id(place.schema) not in self._bare:
            self._kept.append(place)
            rest = {keyword: value for keyword, value in place.schema.items() if keyword != "allOf"}
            self._bare[id(place.schema)] = Place(rest, place.resolver, place.specification)
        return self._bare[id(place.schema)]

    def _nots(self, original: Place, update: Place, path: str) -> list[Difference]:
        if "not" not in update.schema:
            return []
        if "not" not in original.schema:
            return [Difference("NOT_TYPE_EXTENDED", path + "not")]
        # What the update forbids has to be forbidden already.
        after, before = update.inner(update.schema["not"]), original.inner(original.schema["not"])
        return [] if self.accepts(after, before) else [Difference("NOT_TYPE_EXTENDED", path + "not")]


def _types(original: Mapping[str, Any], update: Mapping[str, Any], path: str) -> list[Difference]:
    after = _type_set(update)
    if after is None:
        return []
    before = _type_set(original)
    if before is None:
        choices = original.get("enum", [original["const"]] if "const" in original else None)
        if choices is not None:
            before = {_type_of(value) for value in choices}
        elif any(keyword in original for keyword in ("anyOf", "oneOf", "allOf")):
            return _types_of_parts(original, after, path)
        else:
            return [Difference("TYPE_NARROWED", path + "type")]
    if all(kind in after or (kind == "integer" and "number" in after) for kind in before):
        return []
    return [Difference("TYPE_NARROWED" if after < before else "TYPE_CHANGED", path + "type")]


def _types_of_parts(original: Mapping[str, Any], after: set[str], path: str) -> list[Difference]:
    """A combination has no type of its own; its parts may have."""
    every = [*original.get("anyOf", ()), *original.get("oneOf", ())]
    some = original.get("allOf", ())

    def within(part: Any) -> bool:
        kinds = _type_set(part) if isinstance(part, dict) else None
        return kinds is not None and all(k in after or (k == "integer" and "number" in after) for k in kinds)

    fits = (bool(every) and all(map(within, every))) or any(map(within, some))
    return [] if fits else [Difference("TYPE_CHANGED", path + "type")]


def _type_set(schema: Mapping[str, Any]) -> set[str] | None:
    kinds = schema.get("type")
    return None if kinds is None else {kinds} if isinstance(kinds, str) else set(kinds)


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _values(original: Mapping[str, Any], update: Mapping[str, Any], path: str) -> list[Difference]:
    def choices(schema: Mapping[str, Any]) -> list[Any] | None:
        return [schema["const"]] if "const" in schema else schema.get("enum")

    after, before = choices(update), choices(original)
    if after is None:
        return []
    if before is None:
        return [Difference("ENUM_ARRAY_ADDED", path + "enum")]
    if all(value in after for value in before):
        return []
    narrowed = all(value in before for value in after)
    return [Difference("ENUM_ARRAY_NARROWED" if narrowed else "ENUM_ARRAY_CHANGED", path + "enum")]


def _may_be(schema: Mapping[str, Any], kind: str) -> bool:
    kinds = _type_set(schema)
    return kinds is None or kind in kinds


_UPPER: Final = {
    "maxLength": "MAX_LENGTH", "maximum": "MAXIMUM", "exclusiveMaximum": "EXCLUSIVE_MAXIMUM", "maxItems": "MAX_ITEMS",
    "maxProperties": "MAX_PROPERTIES", "maxContains": "MAX_CONTAINS",
}  # fmt: skip
_LOWER: Final = {
    "minLength": "MIN_LENGTH", "minimum": "MINIMUM", "exclusiveMinimum": "EXCLUSIVE_MINIMUM", "minItems": "MIN_ITEMS",
    "minProperties": "MIN_PROPERTIES", "minContains": "MIN_CONTAINS",
}  # fmt: skip
_NUMBER: Final = ("number", "integer")
_BOUNDED: Final[Mapping[str, Sequence[str]]] = {
    "maxLength": ("string",), "minLength": ("string",), "maximum": _NUMBER, "minimum": _NUMBER,
    "exclusiveMaximum": _NUMBER, "exclusiveMinimum": _NUMBER, "maxItems": ("array",), "minItems": ("array",),
    "maxContains": ("array",), "minContains": ("array",), "maxProperties": ("object",), "minProperties": ("object",),
}  # fmt: skip
"""The types that a limit bounds."""
_SAME: Final = {"pattern": "PATTERN", "contains": "CONTAINS", "propertyNames": "PROPERTY_NAMES"}


def _limits(original: Mapping[str, Any], update: Mapping[str, Any], path: str) -> list[Difference]:
    """Limits on numbers, lengths and counts: new ones and tighter ones."""
    found: list[Difference] = []
    for keyword, rule in _UPPER.items():
        found += _limit(original, update, keyword, rule, "DECREASED", path)
    for keyword, rule in _LOWER.items():
        found += _limit(original, update, keyword, rule, "INCREASED", path)
    for keyword, rule in _SAME.items():
        if keyword in update and update[keyword] != original.get(keyword):
            found.append(Difference(f"{rule}_{'CHANGED' if keyword in original else 'ADDED'}", path + keyword))
    if (factor := update.get("multipleOf")) is not None:
        before = original.get("multipleOf")
        if before is None or before % factor:
            rule = "MULTIPLE_OF_ADDED" if before is None else "MULTIPLE_OF_CHANGED"
            found.append(Difference(rule, path + "multipleOf"))
    if update.get("uniqueItems") and not original.get("uniqueItems"):
        found.append(Difference("UNIQUE_ITEMS_ADDED", path + "uniqueItems"))
    return found


def _limit(
    original: Mapping[str, Any], update: Mapping[str, Any], keyword: str, rule: str, tighter: str, path: str
) -> list[Difference]:
    before, after = original.get(keyword), update.get(keyword)
    if after is None or after is False or before == after or not any(_may_be(original, k) for k in _BOUNDED[keyword]):
        return []
    if before is None or isinstance(after, bool) or isinstance(before, bool):  # draft 4 has exclusiveMaximum: true
        return [Difference(f"{rule}_ADDED", path + keyword)]
    is_tighter = after < before if tighter == "DECREASED" else after > before
    return [Difference(f"{rule}_{tighter}", path + keyword)] if is_tighter else []


def _named(place: Place, keyword: str) -> dict[str, Place]:
    schemas: dict[str, Any] = place.schema.get(keyword) or {}
    return {name: place.inner(schema) for name, schema in schemas.items()}


def _listed(schema: Mapping[str, Any], keyword: str) -> list[str]:
    names = schema.get(keyword)
    return names if isinstance(names, list) else []  # draft 3 has required: true


def _covers(place: Place, name: str) -> list[Place]:
    """What a schema says of a property that it does not name: each of these binds it. Empty: it may be anything."""
    bound = _named(place, "patternProperties")
    found = [schema for pattern, schema in bound.items() if _matches(pattern, name)]
    rest = place.schema.get("additionalProperties", True)
    return found if found or rest in (True, {}) else [place.inner(rest).target()]


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def _tuple(schema: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Schemas of the first items, and of the rest."""
    items = schema.get("items", True)
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    return schema.get("prefixItems", []), items


def _parts(place: Place, keyword: str) -> list[Place]:
    return [place.inner(part) for part in place.schema.get(keyword) or ()]


def _each_has_its_own(
    sources: Sequence[Place], choices: Sequence[Place], accepts: Callable[[Place, Place], bool]
) -> bool:
    """Whether each source can be given a choice that accepts it, no choice twice (Kuhn's matching)."""
    edges = [[index for index, choice in enumerate(choices) if accepts(source, choice)] for source in sources]
    owner: dict[int, int] = {}

    def place(source: int, tried: set[int]) -> bool:
        for choice in edges[source]:
            if choice not in tried:
                tried.add(choice)
                if choice not in owner or place(owner[choice], tried):
                    owner[choice] = source
                    return True
        return False

    return all(place(source, set()) for source in range(len(sources)))
