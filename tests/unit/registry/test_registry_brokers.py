"""Registries of several brokers over one topic: what each decides while the others write."""

import concurrent.futures
import functools
import itertools
import json
import random
import threading

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
        for key, value, headers in new:
            take(Record(self.position, 0, key, value, headers))
            self.position += 1

    def write(self, records, headers=()):
        if self.before_write:
            self.before_write.pop(0)()
        self.topic.records += [(key, value, headers) for key, value in records]


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


def test_an_import_brings_a_hidden_version_back(topic):
    broker = Broker(topic)
    broker.register("s", USER)
    broker.call("DELETE", "/subjects/s")
    broker.call("PUT", "/mode/s", {"mode": "IMPORT"})
    body = {"schema": json.dumps(USER), "id": 1, "version": 1}
    assert broker.call("POST", "/subjects/s/versions", body)[0] == 200
    assert Broker(topic).call("GET", "/subjects/s/versions")[1] == [1]


class Turns:
    """Threads that take turns, as a seed decides: each one goes on, alone, at its next request to the log."""

    def __init__(self, seed, logs):
        self.chance = random.Random(seed)
        self.changed = threading.Condition()
        self.waiting, self.running = set(), 0
        for log in logs:
            for name in ("read_new", "write"):
                setattr(log, name, self.in_turn(getattr(log, name)))

    def in_turn(self, method):
        def call(*given):
            if not self.running:
                return method(*given)
            with self.changed:
                me = threading.get_ident()
                self.waiting.add(me)
                self.running -= 1
                self.pass_on()
                self.changed.wait_for(lambda: me not in self.waiting)
            return method(*given)

        return call

    def pass_on(self):
        if self.running == 0 and self.waiting:
            self.waiting.discard(self.chance.choice(sorted(self.waiting)))
            self.running += 1
            self.changed.notify_all()

    def run(self, actions):
        def act(action):
            try:
                action()
            finally:
                with self.changed:
                    self.running -= 1
                    self.pass_on()

        with concurrent.futures.ThreadPoolExecutor(len(actions)) as pool:
            self.running = len(actions)
            for done in [pool.submit(act, action) for action in actions]:
                done.result()


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("seed", range(15))
def test_what_was_answered_holds_however_brokers_take_turns(topic, seed, count):
    Broker(topic).call("PUT", "/config", {"compatibility": "NONE"})
    brokers = [Broker(topic) for _ in range(count)]
    answered = []

    def registers(broker, number):
        chance = random.Random(f"{seed} {number}")
        for _ in range(12):
            subject, schema = chance.choice("abc"), record(f"R{chance.randrange(8)}", ("x", "int"))
            status, answer = broker.register(subject, schema)
            assert status == 200, answer
            answered.append((subject, answer["version"], answer["id"], schema))

    Turns(seed, [broker.log for broker in brokers]).run(
        [functools.partial(registers, broker, number) for number, broker in enumerate(brokers)]
    )
    compacted = Topic()
    last = {key: offset for offset, (key, *_) in enumerate(topic.records)}
    compacted.records = [topic.records[offset] for offset in sorted(last.values())]
    for broker in (*brokers, Broker(topic), Broker(compacted)):
        for subject, version, schema_id, schema in answered:
            status, shown = broker.call("GET", f"/subjects/{subject}/versions/{version}")
            assert (status, shown["id"], json.loads(shown["schema"])) == (200, schema_id, schema)
        for shown in broker.call("GET", "/schemas")[1]:
            assert text_of(broker, shown["id"]) == json.loads(shown["schema"])
