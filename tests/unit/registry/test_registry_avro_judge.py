"""Random Avro schemas and what may become of them, judged by fastavro: it reads what the registry allows."""

import io
import json
import random

import fastavro
import pytest
from fastavro.utils import generate_one

from millstream.registry.formats.parsed import InvalidSchema
from millstream.registry.formats.parsing import parse
from millstream.registry.model import Schema

VALUES = 12
DEFAULTS = {
    "null": None, "boolean": True, "int": 1, "long": 2, "float": 0.5, "double": 1.5, "bytes": "a", "string": "s",
}  # fmt: skip
WIDER = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"], "string": ["bytes"]}


class Schemas:
    """Makes schemas and changes them; ``names`` counts the named types of one schema."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = 0

    def name(self, letter):
        self.names += 1
        return f"{letter}{self.names}"

    def kind(self, depth):
        choice = self.random.random()
        if depth <= 0 or choice < 0.45:
            return self.random.choice(list(DEFAULTS))
        if choice < 0.55:
            return {"type": "array", "items": self.kind(depth - 1)}
        if choice < 0.63:
            return {"type": "map", "values": self.kind(depth - 1)}
        if choice < 0.73:
            return self.random.sample(list(DEFAULTS), self.random.randint(1, 3))
        if choice < 0.82:
            symbols = self.random.sample("ABCD", self.random.randint(1, 3))
            return {"type": "enum", "name": self.name("E"), "symbols": symbols}
        if choice < 0.88:
            return {"type": "fixed", "name": self.name("F"), "size": self.random.choice([1, 2, 4])}
        return self.record(depth - 1)

    def record(self, depth):
        name = self.name("R")
        fields = [self.field(f"f{number}", self.kind(depth)) for number in range(self.random.randint(1, 4))]
        return {"type": "record", "name": name, "fields": fields}

    def field(self, name, kind):
        default = {"default": default_of(kind)} if self.random.random() < 0.5 else {}
        return {"name": name, "type": kind, **default}

    def changed(self, kind):
        choice = self.random.random()
        if isinstance(kind, str):
            return self.random.choice(WIDER.get(kind, [kind])) if choice < 0.3 else ["null", kind][kind == "null" :]
        if isinstance(kind, list):
            return kind[::-1] if choice < 0.3 else kind[1:] if choice > 0.8 and len(kind) > 1 else kind
        return self._changed_type(dict(kind), choice)

    def _changed_type(self, kind, choice):
        inner = {"array": "items", "map": "values"}.get(kind["type"])
        if inner is not None:
            kind[inner] = self.changed(kind[inner])
        elif kind["type"] == "enum":
            kind["symbols"] = [*kind["symbols"], "Z"] if choice < 0.4 else kind["symbols"][:1]
            if self.random.random() < 0.4:
                kind["default"] = kind["symbols"][0]
        elif kind["type"] == "fixed":
            kind["size"] = 8 if choice < 0.2 else kind["size"]
        else:
            fields = [self._changed_field(dict(field)) for field in kind["fields"] if self.random.random() > 0.1]
            if choice < 0.3:
                fields.append(self.field("added", self.random.choice(list(DEFAULTS))))
            self.random.shuffle(fields)
            kind["fields"] = fields
        return kind

    def _changed_field(self, field):
        if self.random.random() < 0.15:
            field |= {"aliases": [field["name"]], "name": f"n_{field['name']}"}
        if self.random.random() < 0.5:
            field["type"] = self.changed(field["type"])
            if "default" in field:
                field["default"] = default_of(field["type"])
        return field


def default_of(kind):
    if isinstance(kind, list):
        return default_of(kind[0])
    if isinstance(kind, str):
        return DEFAULTS[kind]
    if kind["type"] == "record":
        return {field["name"]: default_of(field["type"]) for field in kind["fields"]}
    return {"array": [], "map": {}, "enum": kind.get("symbols", [""])[0], "fixed": "\0" * kind.get("size", 0)}[
        kind["type"]
    ]


def reads_all(writer, reader):
    """Whether random values of one schema are read with the other; texts that are no UTF-8 do not count."""
    written, wanted = (fastavro.parse_schema(json.loads(json.dumps(each))) for each in (writer, reader))
    for _ in range(VALUES):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, written, generate_one(written))
        out.seek(0)
        try:
            fastavro.schemaless_reader(out, written, wanted)
        except UnicodeDecodeError:
            continue
        except Exception:  # noqa: BLE001 (fastavro raises what its inner workings do)
            return False
    return True


@pytest.mark.parametrize("part", range(4))
def test_what_the_registry_allows_is_read_and_what_it_refuses_is_not(part):
    allowed = refused = 0
    for seed in range(part * 150, part * 150 + 150):
        schemas = Schemas(seed)
        random.seed(seed)  # fastavro's values
        writer = schemas.record(3)
        reader = schemas.changed(writer)
        try:
            old, new = (parse(Schema(json.dumps(each)), lambda _: None) for each in (writer, reader))
        except InvalidSchema:
            continue
        differences = new.differences(old)
        assert reads_all(writer, reader) == (not differences), (seed, differences, writer, reader)
        allowed, refused = allowed + (not differences), refused + bool(differences)
    assert min(allowed, refused) > 5, "both kinds are among the schemas"
