"""A registry without a broker: requests in, responses out, records kept in a list as the topic would keep them."""

import json
from urllib.parse import quote

from millstream.registry.model import Refused
from millstream.registry.records import decode, encode
from millstream.registry.rest import HttpRequest, handle, refusal
from millstream.registry.service import Service
from millstream.registry.state import State


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.content_type = response.content_type
        self.body = response.body
        self.json = json.loads(response.body)

    @property
    def code(self):
        return self.json["error_code"]


class Registry:
    """Applies what it writes only after encoding and decoding it, as a broker's topic would hand it back."""

    def __init__(self, records=()):
        self.records = []
        self.state = State()
        self.service = Service(self.state)
        for key, value in records:
            self._append(key, value)

    def _append(self, key, value):
        self.records.append((key, value))
        event = decode(key, value)
        if event is not None:
            self.state.apply(event)

    def restarted(self, *, compacted=False):
        records = list({key: (key, value) for key, value in self.records}.values()) if compacted else self.records
        return Registry(records)

    def call(self, method, path, body=None, headers=None):
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        request = HttpRequest(method, path, headers or {}, data)
        try:
            decision, respond = handle(self.service, request)
        except Refused as error:
            return Answer(refusal(error, request))
        for event in decision.events:
            record = encode(event)
            self._append(record.key, record.value)
        return Answer(respond(decision.answer))

    def get(self, path, **more):
        return self.call("GET", path, **more)

    def post(self, path, body, **more):
        return self.call("POST", path, body, **more)

    def put(self, path, body, **more):
        return self.call("PUT", path, body, **more)

    def delete(self, path):
        return self.call("DELETE", path)

    def register(self, subject, schema, **more):
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return self.post(f"/subjects/{quote(subject, safe='')}/versions", {"schema": text, **more})

    def level(self, subject, level):
        assert self.put(f"/config/{subject}", {"compatibility": level}).status == 200


def record(name, *fields):
    """An Avro record; a field is (name, type) or (name, type, default)."""
    described = [{"name": f[0], "type": f[1], **({"default": f[2]} if len(f) > 2 else {})} for f in fields]
    return {"type": "record", "name": name, "fields": described}
