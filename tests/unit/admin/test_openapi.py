"""The table of routes decodes requests, and its OpenAPI document is valid and says what the broker does."""

import json
import urllib.parse
from contextlib import nullcontext

import msgspec
import pytest
from openapi_spec_validator import validate

from millstream import __version__
from millstream.admin import bodies
from millstream.admin.endpoints import ROUTES, make_router
from millstream.admin.openapi import document
from millstream.admin.resources import ForgetOffsetsQuery, RemoveAclQuery, SettingsChange
from millstream.admin.routing import Request
from millstream.core.controller.requests import SetBrokerMode
from millstream.telemetry.metrics import StatsSlab

DOCUMENT = document(ROUTES, __version__)


GIVEN = {
    ForgetOffsetsQuery: {"topic": "t"},
    RemoveAclQuery: {
        "resource": "topic",
        "name": "t",
        "principal": "User:a",
        "operation": "read",
        "permission": "allow",
    },
}
"""What the query of a change must have beside ``dry_run``."""


class Recorder:
    """A broker that notes what it is asked."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        def ask(*arguments, **more):
            self.asked.append((name, *arguments, *more.values()))
            return {}

        if name == "acting":
            return lambda _: nullcontext(self)

        return ask


def answer(method, path, body=b"", host="127.0.0.1"):
    broker = Recorder()
    router = make_router(broker, StatsSlab())
    route, request = router.find(method, path)
    found = router.answer(route, msgspec.structs.replace(request, body=body, client_host=host))
    return found, broker.asked


def test_the_document_is_valid():
    validate(json.loads(json.dumps(DOCUMENT)))
    assert DOCUMENT["openapi"] == "3.1.0"


def test_every_route_is_in_the_document_with_its_right():
    found = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert found == {(route.method, route.path) for route in ROUTES}
    for route in ROUTES:
        operation = DOCUMENT["paths"][route.path][route.method.lower()]
        assert operation["summary"].endswith(".")
        assert bool(operation["security"]) == (route.needs is not None)
        assert ("x-millstream-right" in operation) == (route.needs is not None)
    names = [each["operationId"] for methods in DOCUMENT["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names))


def test_the_document_is_served():
    found, _ = answer("GET", "/v1/openapi.json")
    assert json.loads(found.body) == json.loads(json.dumps(DOCUMENT))


def test_examples_are_taken_by_their_routes():
    bodied = [route for route in ROUTES if route.body is not None]
    assert len(bodied) >= 5
    for route in bodied:
        found, asked = answer(route.method, route.path, json.dumps(route.example).encode())
        assert (found.status, len(asked)) == (route.status, 1), route.path


def test_a_body_and_a_parameter_arrive_decoded():
    _, asked = answer("POST", "/v1/cluster", b'{"type":"set_broker_mode","node":3,"mode":"leaving"}')
    assert asked == [("change_cluster", SetBrokerMode(3, "leaving"))]
    _, asked = answer("POST", "/v1/recovery", b'{"groups":[1],"lost":[2]}')
    assert asked == [("lead_alone", bodies.LeadAlone((1,), (2,)))]
    assert answer("GET", "/v1/tiers?topic=a%2Fb")[1] == [("tiers", "a/b")]
    assert answer("GET", "/v1/tiers")[1] == [("tiers", None)]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/cluster", b"", "truncated"),
        ("/v1/cluster", b"{", "truncated"),
        ("/v1/cluster", b'{"type":"delete_everything"}', "$.type"),
        ("/v1/cluster", b'{"type":"set_broker_mode","node":"1","mode":"drained"}', "$.node"),
        ("/v1/cluster", b'{"type":"set_broker_mode","node":%d,"mode":"drained"}' % 10**40, ""),
        ("/v1/recovery", b'{"groups":[1],"lost":[2],"force":true}', "force"),
        ("/v1/recovery", b'{"groups":[1]}', "lost"),
        ("/v1/partitions/repair", b'{"topic":"t","partition":1.5}', "$.partition"),
        ("/v1/tiers/prepare", b'{"topics":"orders"}', "$.topics"),
        ("/v1/tiers/prepare", b'{"topics":["\xff"]}', ""),
        ("/v1/tiers/recover", b'{"x":' * 100_000, ""),
    ],
)
def test_a_body_that_does_not_fit_is_refused_and_changes_nothing(path, body, words):
    found, asked = answer("POST", path, body)
    failure = json.loads(found.body)
    assert (found.status, failure["error"], asked) == (400, "INVALID_REQUEST", [])
    assert words in failure["message"]


def test_a_dry_run_arrives_as_one():
    body = b'{"values":{"retention.ms":null}}'
    _, asked = answer("POST", "/v1/topics/a%2Fb/settings?dry_run=true", body)
    assert asked == [("change_settings", "a/b", SettingsChange({"retention.ms": None}), True)]
    assert answer("POST", "/v1/topics/t/settings", body)[1][0][-1] is False
    assert answer("POST", "/v1/topics/t/settings?dry_run=perhaps", body)[1] == []


def test_a_password_in_clear_from_another_machine_is_refused_and_never_shown():
    body = b'{"password":"a-word-of-eve"}'
    found, asked = answer("PUT", "/v1/users/eve/SCRAM-SHA-256", body, host="192.0.2.7")
    assert (found.status, json.loads(found.body)["error"], asked) == (403, "PASSWORD_IN_CLEAR", [])
    _, asked = answer("PUT", "/v1/users/eve/SCRAM-SHA-256", body)
    assert asked[0][3].password == "a-word-of-eve"
    assert "a-word-of-eve" not in repr(asked)


def test_every_change_has_a_dry_run_unless_it_is_of_the_broker_itself():
    own = {route.path for route in ROUTES if route.method != "GET" and route.query is None}
    assert own == {
        "/v1/cluster",
        "/v1/recovery",
        "/v1/partitions/repair",
        "/v1/loggers",
        "/v1/certificates/reload",
        "/v1/bundle",
        "/v1/tiers/prepare",
        "/v1/tiers/recover",
    }


@pytest.mark.parametrize("route", [each for each in ROUTES if each.method != "GET"], ids=lambda route: route.path)
def test_a_change_without_a_dry_run_is_not_made_on_one(route):
    body = json.dumps(route.example).encode() if route.body is not None else b""
    given = urllib.parse.urlencode({"dry_run": "true", **GIVEN.get(route.query, {})})
    found, asked = answer(route.method, f"{route.path}?{given}", body)
    if route.query is None:
        assert (found.status, json.loads(found.body)["error"], asked) == (400, "INVALID_REQUEST", [])
    else:
        assert [arguments[-1] for arguments in asked] == [True]
    found, asked = answer(route.method, f"{route.path}?{given}&dryrun=true", body)
    assert (found.status, asked) == (400, [])


def test_a_call_has_the_request():
    route = next(each for each in ROUTES if each.path == "/v1/topics/{topic}/segments")
    assert route.call(Request("GET", "/x", variables={"topic": "t"})).request.variables == {"topic": "t"}
