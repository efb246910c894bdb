"""Registries of several brokers over one topic: what each decides while the others write."""

import itertools
import json
import random

import pytest
from registry_client import record

from millstream.registry.rest import HttpRequest
from millstream.registry.serve import Registry
from millstream.wire.records import Record


class Topic:
    """The records of ``_schemas``; a reader has its own position."""

    def __init__(self):
        self.records = []

    def reader(self):
        return Reader(self)


class Reader:
    """``before_write`` runs once, before the next write: what another broker does meanwhile."""

    def __init__(self, topic):
        self.topic = topic
        self.position = 0
        self.before_write = []

    def read_new(self, take):
        new = self.topic.records[self.position :]
        for key, value in new:
            take(Record(self.position, 0, key, value))
            self.position += 1

    def write(self, records):
        if self.before_write:
            self.before_write.pop(0)()
        self.topic.records += records


class Broker:
    def __init__(self, topic):
        self.log = topic.reader()
        self.warnings = []
        self.registry = Registry(self.log, self.warnings.append)

    def call(self, method, path, body=None):
        answer = self.registry.respond(
            HttpRequest(method, path, {}, b"" if body is None else json.dumps(body).encode())
        )
        return answer.status, json.loads(answer.body)

    def register(self, subject, schema):
        return self.call("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(schema)})

    def meanwhile(self, action):
        self.log.before_write.append(action)


@pytest.fixture
def topic():
    return Topic()


USER = record("User", ("name", "string"))
ORDER = record("Order", ("id", "long"))


def text_of(broker, schema_id):
    return json.loads(broker.call("GET", f"/schemas/ids/{schema_id}")[1]["schema"])


def test_two_subjects_at_once_get_two_ids(topic):
    one, two = Broker(topic), Broker(topic)
    one.meanwhile(lambda: two.register("orders", ORDER))
    status, users = one.register("users", USER)
    assert (status, users["version"]) == (200, 1)
    for broker in (one, two, Broker(topic)):
        assert text_of(broker, users["id"]) == USER
        assert text_of(broker, broker.call("GET", "/subjects/orders/versions/1")[1]["id"]) == ORDER
        assert broker.warnings == []


def test_two_versions_at_once_are_two_versions(topic):
    one, two = Broker(topic), Broker(topic)
    two.call("PUT", "/config", {"compatibility": "NONE"})
    answers = []
    one.meanwhile(lambda: answers.append(two.register("s", ORDER)[1]))
    answers.append(one.register("s", USER)[1])
    assert [answer["version"] for answer in answers] == [1, 2]
    for broker in (one, two, Broker(topic)):
        assert [text_of(broker, answer["id"]) for answer in answers] == [ORDER, USER]
        assert broker.call("GET", "/subjects/s/versions")[1] == [1, 2]


def test_a_version_that_does_not_fit_the_one_that_came_first_is_refused_and_leaves_nothing(topic):
    one, two = Broker(topic), Broker(topic)
    one.meanwhile(lambda: two.register("s", ORDER))
    assert one.register("s", USER)[0] == 409
    for broker in (one, two, Broker(topic)):
        assert broker.call("GET", "/subjects/s/versions")[1] == [1]
        assert text_of(broker, 1) == ORDER
        assert broker.call("GET", "/schemas/ids/2")[0] == 404


def test_the_same_schema_at_once_is_one(topic):
    one, two = Broker(topic), Broker(topic)
    answers = []
    one.meanwhile(lambda: answers.append(two.register("s", USER)))
    answers.append(one.register("s", USER))
    assert answers[0] == answers[1] == (200, {"id": 1, "version": 1})
    assert Broker(topic).call("GET", "/subjects/s/versions")[1] == [1]


def test_a_registry_that_is_always_too_late_says_so(topic):
    one, two = Broker(topic), Broker(topic)
    names = itertools.count()
    for _ in range(100):
        one.meanwhile(lambda: two.register(f"t{next(names)}", record(f"R{len(topic.records)}", ("a", "int"))))
    status, answer = one.register("s", USER)
    assert status == 500
    assert "nothing was written" in answer["message"]
    assert Broker(topic).call("GET", "/subjects/s/versions")[0] == 404


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_between_an_answer_holds(topic, seed):
    chance = random.Random(seed)
    brokers = [Broker(topic) for _ in range(2)]
    brokers[0].call("PUT", "/config", {"compatibility": "NONE"})
    answered = {}

    def register(broker):
        subject = chance.choice(["a", "b", "c"])
        schema = record(f"R{chance.randrange(12)}", ("x", "int"))
        status, answer = broker.register(subject, schema)
        assert status == 200
        answered[subject, answer["version"]] = (answer["id"], schema)

    for _ in range(30):
        first, second = chance.sample(brokers, 2)
        if chance.random() < 0.7:
            first.meanwhile(lambda broker=second: register(broker))
        register(first)
        first.log.before_write.clear()
    for broker in (*brokers, Broker(topic)):
        for (subject, version), (schema_id, schema) in answered.items():
            status, shown = broker.call("GET", f"/subjects/{subject}/versions/{version}")
            assert (status, shown["id"], json.loads(shown["schema"])) == (200, schema_id, schema)
            assert text_of(broker, schema_id) == schema
