"""A running broker answers as its OpenAPI document says, also to requests that no person would write."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema
import pytest

from millstream.admin.endpoints import ROUTES

pytestmark = pytest.mark.process


def ask(broker, method, path, body=None):
    headers = {"Content-Type": "application/json"} if method in ("POST", "PUT") else {}
    request = urllib.request.Request(broker.http + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def check(document, operation, status, body):
    schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    jsonschema.validate(json.loads(body), {**schema, "components": document["components"]})


ABSENT = {
    ("/v1/tiers", 503),
    ("/v1/backups", 400),
    ("/v1/acls", 400),
    ("/v1/groups/{group}", 404),
    ("/v1/transactions/{transactional_id}", 404),
}
"""What this broker does not have: an object store, a place of backups, access control, groups, transactions."""


def test_answers_have_the_fields_of_the_document(broker):
    topic = broker.new_topic()
    document = json.loads(ask(broker, "GET", "/v1/openapi.json")[1])
    checked = 0
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        if route.method == "GET" and "application/json" in operation["responses"]["200"]["content"]:
            path = route.path.replace("{topic}", topic).replace("{group}", "g").replace("{transactional_id}", "t")
            status, body = ask(broker, "GET", path)
            if (route.path, status) in ABSENT:
                check(document, operation, status, body)
                continue
            assert status == 200, (route.path, body)
            check(document, operation, status, body)
            checked += 1
        if route.body is not None:
            status, body = ask(broker, route.method, route.path, b'{"unheard": 1}')
            assert status == 400, (route.path, body)
            check(document, operation, status, body)
            checked += 1
    assert checked > 12
    status, body = ask(broker, "GET", "/v1/topics/no-such-topic/segments")
    assert status == 404
    check(document, document["paths"]["/v1/topics/{topic}/segments"]["get"], status, body)


def test_lists_are_bounded_and_say_how_many_there_are(broker):
    names = sorted(broker.new_topic() for _ in range(3))
    found = json.loads(ask(broker, "GET", "/v1/topics?limit=1000")[1])
    assert set(names) <= {one["name"] for one in found["topics"]}
    assert [one["name"] for one in found["topics"]] == sorted(one["name"] for one in found["topics"])
    one = json.loads(ask(broker, "GET", "/v1/topics?limit=1")[1])
    assert (len(one["topics"]), one["total"] >= 3) == (1, True)
    assert json.loads(ask(broker, "GET", "/v1/brokers")[1]) == {"brokers": []}  # it runs alone
    assert "total" in json.loads(ask(broker, "GET", "/v1/groups")[1])
    for limit in ("0", "1001", "x", "-1", "1e400"):
        status, body = ask(broker, "GET", f"/v1/topics?limit={limit}")
        assert (status, json.loads(body)["error"]) == (400, "INVALID_REQUEST"), limit


@pytest.mark.slow
@pytest.mark.ci
def test_no_request_that_fits_the_document_or_nearly_fits_breaks_a_route(broker_factory, tmp_path):
    broker = broker_factory(topics=["orders"], shards=1)
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"{broker.http}/v1/openapi.json",
        "--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        "--max-examples=8",
        "--seed=1",
        "--phases=examples,coverage,fuzzing",
        "--generation-database=none",
    ]
    found = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path, check=False)
    assert found.returncode == 0, found.stdout[-6000:]
    assert ask(broker, "GET", "/healthz")[0] == 200
    assert "Traceback" not in broker.log_path.read_text()
