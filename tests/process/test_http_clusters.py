"""Every broker of a secured cluster does over HTTP what Kafka's API can, as the caller, wherever the leader is."""

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from console_support import Secured, secured

from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as started:
        yield started


def ask(found: Secured, number: int, method: str, path: str, body: Any = None, user: str = "admin") -> tuple[int, Any]:
    url = json.loads((found.brokers[number].data_dir / "broker.json").read_text())["http"]
    pair = base64.b64encode(f"{user}:{found.words[user]}".encode()).decode()
    headers = {"Authorization": f"Basic {pair}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers, method=method)
    context = ssl.create_default_context(cafile=found.keys / "ca.pem")
    try:
        with urllib.request.urlopen(request, timeout=120, context=context) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_group_is_moved_and_a_user_made_at_any_broker(found: Secured, number: int) -> None:
    group = f"group-{number}"
    consumer = Consumer({**found.client, "group.id": group})
    consumer.commit(offsets=[TopicPartition("orders", partition, 1) for partition in range(3)], asynchronous=False)
    consumer.close()
    path = f"/v1/groups/{group}/offsets"
    assert [one["offset"] for one in ask(found, number, "GET", path)[1]["offsets"]] == [1, 1, 1]
    assert ask(found, number, "POST", path, {"to": "latest"}, "reader")[0] == 403
    assert ask(found, number, "GET", path, user="nobody")[0] == 403
    status, answer = ask(found, number, "POST", path, {"to": "earliest"})
    assert (status, [one["after"] for one in answer["edits"]]) == (200, [0, 0, 0])
    assert [one["offset"] for one in ask(found, (number + 1) % 3, "GET", path)[1]["offsets"]] == [0, 0, 0]
    user = f"/v1/users/made-{number}/SCRAM-SHA-512"
    assert ask(found, number, "PUT", user, {"password": "a-word"}, "reader")[0] == 403
    assert ask(found, number, "PUT", user, {"password": "a-word"})[0] == 200

    def known() -> bool:
        users = ask(found, (number + 2) % 3, "GET", "/v1/users")[1]["users"]
        return any(one["user"] == f"made-{number}" for one in users)

    until(known, "the user at another broker")
    assert ask(found, number, "GET", "/v1/transactions")[1] == {"transactions": []}
    entry = {"resource": "topic", "name": f"t-{number}", "principal": "User:reader", "operation": "write"}
    assert ask(found, number, "POST", "/v1/acls", {**entry, "permission": "deny"})[0] == 200
    quota = {"entity": {"user": f"made-{number}"}, "values": {"consumer_byte_rate": 1000.0}}
    assert ask(found, number, "POST", "/v1/quotas", quota)[0] == 200
    until(lambda: quota in ask(found, (number + 1) % 3, "GET", "/v1/quotas")[1]["quotas"], "the quota elsewhere")
    settings = {"values": {"retention.ms": str(7_200_000 + number)}}
    assert ask(found, number, "POST", "/v1/topics/orders/settings", settings)[0] == 200
    assert ask(found, number, "POST", "/v1/topics/secrets/settings", settings, "reader")[0] == 403
