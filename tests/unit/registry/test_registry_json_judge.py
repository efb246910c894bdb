"""JSON Schemas that may follow each other, judged by documents: what the old one accepts, the new one has to accept.

Random pairs, the second one with one change somewhere inside. ``oneOf`` is left out: two of its choices may accept the
same document, which no comparison of schemas finds. So is a default of a required property, by Confluent's rule.
"""

import copy
import json
import random

import jsonschema
import pytest

from millstream.registry.formats.json_format import parse_json_schema

NAMES = ["a", "b", "xa", "xb", "y"]
TYPES = ["object", "object", "array", "string", "integer", "number", "null", ["object", "null"], ["string", "null"]]
TEXTS = ["", "x", "a", "xx", "abc"]


class Maker:
    def __init__(self, seed):
        self.chance = random.Random(seed)

    def often(self, share):
        return self.chance.random() < share

    def schema(self, depth=0):
        chance = self.chance
        if self.often(0.08):
            return chance.choice([True, False, {}])
        kind = chance.choice(TYPES)
        made = {"type": kind}
        kinds = [kind] if isinstance(kind, str) else kind
        inner = depth < 3
        if "object" in kinds:
            if inner and self.often(0.8):
                made["properties"] = {n: self.schema(depth + 1) for n in chance.sample(NAMES, chance.randint(0, 3))}
            if inner and self.often(0.4):
                made["additionalProperties"] = chance.choice([True, False, self.schema(depth + 1)])
            if inner and self.often(0.35):
                made["patternProperties"] = {
                    p: self.schema(depth + 1) for p in chance.sample(["^x", "a$", "y"], chance.randint(1, 2))
                }
            if self.often(0.2):
                made["required"] = [chance.choice(NAMES)]
            if self.often(0.1):
                made["maxProperties"] = chance.randint(1, 3)
        if "array" in kinds and inner:
            if self.often(0.6):
                made["items"] = self.schema(depth + 1)
            elif self.often(0.7):
                made["items"] = [self.schema(depth + 1) for _ in range(chance.randint(1, 2))]
                made["additionalItems"] = chance.choice([True, False, self.schema(depth + 1)])
            if self.often(0.2):
                made["maxItems"] = chance.randint(1, 3)
        if "string" in kinds and self.often(0.3):
            made[chance.choice(["minLength", "maxLength"])] = chance.randint(1, 2)
        if {"integer", "number"} & set(kinds) and self.often(0.4):
            made[chance.choice(["minimum", "maximum", "multipleOf"])] = chance.randint(1, 3)
        if inner and self.often(0.12):
            made[chance.choice(["allOf", "anyOf"])] = [self.schema(depth + 1) for _ in range(chance.randint(1, 2))]
        if inner and self.often(0.05):
            made["not"] = self.schema(depth + 1)
        return made

    def changed(self, schema):
        """The schema with one member less, one more, or another one, somewhere inside."""
        box = [copy.deepcopy(schema)]
        places = [(box, 0)]
        for holder, key in places:
            here = holder[key]
            if isinstance(here, dict):
                places += [(here, key) for key in ("items", "additionalProperties", "not") if key in here]
                for group in ("properties", "patternProperties"):
                    places += [(here[group], name) for name in here.get(group, ())]
                for group in ("allOf", "anyOf"):
                    places += [(here[group], index) for index in range(len(here.get(group, ())))]
        holder, key = self.chance.choice(places)
        here, other = holder[key], self.schema(self.chance.randint(1, 3))
        if isinstance(here, dict) and here and isinstance(other, dict) and other and self.often(0.8):
            name = self.chance.choice(list(here if self.often(0.5) else other))
            if name in other:
                here[name] = other[name]
            else:
                del here[name]
        else:
            holder[key] = other
        return box[0]

    def document(self, schema, depth=0):
        """A document that the schema often accepts."""
        if not isinstance(schema, dict) or depth > 4 or self.often(0.1):
            return self.chance.choice([None, 0, 1, 2.5, "x", "abc", [], ["x"], {}, {"a": 1}, {"xa": "x"}])
        kind = schema.get("type", self.chance.choice(["object", "array", "string", "integer"]))
        kind = kind if isinstance(kind, str) else self.chance.choice(kind)
        if kind == "object":
            named, patterns = schema.get("properties", {}), list(schema.get("patternProperties", {}).values())
            names = {*schema.get("required", ()), *(name for name in NAMES if self.often(0.5))}
            rest = [*patterns, schema.get("additionalProperties", True)]
            bound = {name: named.get(name, self.chance.choice(rest)) for name in sorted(names)}
            return {name: self.document(inner, depth + 1) for name, inner in bound.items() if inner is not False}
        if kind == "array":
            items = schema.get("items", True)
            inner = items if isinstance(items, list) else [items] * self.chance.randint(0, 2)
            return [self.document(each, depth + 1) for each in inner]
        simple = {"string": TEXTS, "integer": [0, 1, 2, 3, 6], "number": [0, 0.5, 2, 3, 7.5], "null": [None]}
        return self.chance.choice(simple[kind])


@pytest.mark.parametrize("seed", range(8))
def test_a_schema_that_may_follow_reads_every_document_of_the_earlier_one(seed):
    maker = Maker(seed)
    accepted = documents = 0
    for _ in range(150):
        old = maker.schema()
        new = maker.changed(old)
        if parse_json_schema(json.dumps(new), []).differences(parse_json_schema(json.dumps(old), [])):
            continue
        accepted += 1
        earlier, later = jsonschema.Draft7Validator(old), jsonschema.Draft7Validator(new)
        for document in (maker.document(old) for _ in range(25)):
            if earlier.is_valid(document):
                documents += 1
                assert later.is_valid(document), (old, new, document)
    assert accepted > 30
    assert documents > 300
