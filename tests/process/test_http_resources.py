"""Users, rights, quotas, settings, transactions and offsets over HTTP: as the caller, and a dry run changes nothing."""

import base64
import json
import urllib.error
import urllib.parse
import urllib.request

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.client.connection import Connection
from millstream.client.security import Login, Security
from millstream.config.properties.access import STANDARD_AUTHORIZER
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.testing.process import Broker

pytestmark = pytest.mark.process

DRY = "?dry_run=true"


class Http:
    """A broker's HTTP port, asked as a user; without one as a superuser."""

    def __init__(self, broker):
        self.url = broker.http

    def __call__(self, method, path, body=None, user=""):
        headers = {} if body is None else {"Content-Type": "application/json"}
        if user:
            headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:word-of-{user}'.encode()).decode()}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def broker():
    settings = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "listener.security.protocol.map": "A:PLAINTEXT,S:SASL_PLAINTEXT",
        "listener.name.s.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "connection.failed.authentication.delay.ms": 20,
    }
    listen = "A://127.0.0.1:0,S://127.0.0.1:0"
    with Broker({"orders": 2, "ledger": 2}, settings, listen=listen, shards=2) as started:
        yield started


@pytest.fixture(scope="module")
def http(broker):
    return Http(broker)


def logs_in(broker, user, password):
    """Whether a client of Kafka logs in."""
    address = json.loads((broker.data_dir / "broker.json").read_text())["listeners"]["S"]
    host, _, port = address.rpartition(":")
    security = Security("SASL_PLAINTEXT", login=Login("SCRAM-SHA-256", user, password))
    try:
        Connection(host, int(port), security=security).close()
        return True
    except Rejected as error:
        assert error.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        return False


def acl_query(entry, **more):
    return urllib.parse.urlencode({**entry, **more})


def test_a_user_is_created_changed_and_removed(broker, http):
    path = "/v1/users/eve/SCRAM-SHA-256"
    user = {"user": "eve", "mechanism": "SCRAM-SHA-256", "iterations": 8192}
    edit = {"action": "create", "what": "user eve", "before": None, "after": user}
    assert http("PUT", path + DRY, {"password": "first-word"}) == (200, {"dry_run": True, "edits": [edit]})
    assert user not in http("GET", "/v1/users")[1]["users"]
    assert http("PUT", path, {"password": "first-word"}) == (200, {"dry_run": False, "edits": [edit]})
    assert user in http("GET", "/v1/users")[1]["users"]
    assert logs_in(broker, "eve", "first-word")
    changed = {"action": "replace", "what": "user eve", "before": user, "after": {**user, "iterations": 4096}}
    assert http("PUT", path, {"password": "second-word", "iterations": 4096})[1]["edits"] == [changed]
    assert not logs_in(broker, "eve", "first-word")
    assert logs_in(broker, "eve", "second-word")
    removed = {"action": "remove", "what": "user eve", "before": changed["after"], "after": None}
    assert http("DELETE", path + DRY) == (200, {"dry_run": True, "edits": [removed]})
    assert logs_in(broker, "eve", "second-word")
    assert http("DELETE", path) == (200, {"dry_run": False, "edits": [removed]})
    assert not logs_in(broker, "eve", "second-word")
    status, failure = http("DELETE", path)
    assert (status, failure["error"]) == (404, "RESOURCE_NOT_FOUND")


@pytest.mark.parametrize(
    ("mechanism", "body"),
    [
        ("SCRAM-SHA-1", {"password": "x"}),
        ("SCRAM-SHA-256", {"password": ""}),
        ("SCRAM-SHA-256", {"password": "x", "iterations": 10**9}),
        ("SCRAM-SHA-256", {"password": "x", "iterations": 1}),
        ("SCRAM-SHA-256", {"word": "x"}),
        ("SCRAM-SHA-256", {}),
    ],
)
@pytest.mark.parametrize("query", ["", DRY])
def test_a_bad_user_is_refused_also_on_a_dry_run(http, mechanism, body, query):
    before = http("GET", "/v1/users")
    assert http("PUT", f"/v1/users/mallory/{mechanism}{query}", body)[0] == 400
    assert http("GET", "/v1/users") == before


def test_an_entry_is_added_once_and_removed_exactly(http):
    entry = {"resource": "topic", "name": "acl-", "principal": "User:carol", "operation": "write"}
    entry |= {"permission": "deny", "pattern": "prefixed", "host": "*"}
    other = {**entry, "pattern": "literal"}
    assert len(http("POST", f"/v1/acls{DRY}", entry)[1]["edits"]) == 1
    assert entry not in http("GET", "/v1/acls")[1]["acls"]
    assert len(http("POST", "/v1/acls", entry)[1]["edits"]) == 1
    assert http("POST", "/v1/acls", entry) == (200, {"dry_run": False, "edits": []})
    assert http("POST", "/v1/acls", other)[0] == 200
    assert http("DELETE", f"/v1/acls?{acl_query(entry, dry_run='true')}")[1]["edits"][0]["before"] == entry
    assert http("DELETE", f"/v1/acls?{acl_query(entry)}")[1]["edits"][0]["action"] == "remove"
    left = http("GET", "/v1/acls")[1]["acls"]
    assert (entry in left, other in left) == (False, True)
    assert http("DELETE", f"/v1/acls?{acl_query(entry)}") == (200, {"dry_run": False, "edits": []})
    for field in ("resource", "name", "principal", "operation", "permission"):
        some = {name: value for name, value in other.items() if name != field}
        assert http("DELETE", f"/v1/acls?{acl_query(some)}")[0] == 400, "a part of an entry removes nothing"
    assert http("DELETE", f"/v1/acls?{acl_query(other)}")[0] == 200


def test_quotas_are_checked_set_and_removed(http):
    entity, values = {"user": "eve", "client-id": None}, {"producer_byte_rate": 2000.0}
    wanted = {"entity": entity, "values": values}
    assert len(http("POST", f"/v1/quotas{DRY}", wanted)[1]["edits"]) == 1
    assert http("GET", "/v1/quotas")[1]["quotas"] == []
    assert http("POST", "/v1/quotas", wanted)[1]["edits"][0]["after"] == 2000.0
    assert http("GET", "/v1/quotas")[1]["quotas"] == [{"entity": entity, "values": values}]
    assert http("POST", "/v1/quotas", wanted)[1]["edits"] == []
    for query in ("", DRY):
        status, failure = http("POST", f"/v1/quotas{query}", {"entity": entity, "values": {"no_such_rate": 1}})
        assert (status, failure["error"]) == (400, "INVALID_REQUEST")
        assert http("POST", f"/v1/quotas{query}", {"entity": {"ip": "x", "user": "y"}, "values": values})[0] == 400
    gone = {"entity": entity, "values": {"producer_byte_rate": None}}
    assert http("POST", "/v1/quotas", gone)[1]["edits"][0]["action"] == "remove"
    assert http("GET", "/v1/quotas")[1]["quotas"] == []


def test_settings_of_a_topic_and_of_brokers_are_checked_and_changed(http):
    for path, name, value in (
        ("/v1/topics/orders/settings", "retention.ms", "7200000"),
        ("/v1/settings", "log.retention.ms", "86400000"),
    ):
        assert http("POST", path + DRY, {"values": {name: value}})[1]["edits"][0]["after"] == value
        assert http("GET", path)[1]["settings"] == []
        assert http("POST", path, {"values": {name: value}})[1]["edits"][0]["action"] == "create"
        (setting,) = http("GET", path)[1]["settings"]
        assert (setting["name"], setting["value"]) == (name, value)
        assert http("POST", path, {"values": {name: value}})[1]["edits"] == []
        for query in ("", DRY):
            for bad in ({name: "soon"}, {"no.such.setting": "1"}, {name: "1", "no.such.setting": "1"}):
                assert http("POST", path + query, {"values": bad})[0] == 400, bad
        assert http("GET", path)[1]["settings"] == [setting]
        assert len(http("GET", f"{path}?all=true")[1]["settings"]) > 20
        assert http("POST", path, {"values": {name: None}})[1]["edits"][0]["before"] == value
        assert http("GET", path)[1]["settings"] == []
    own = {"values": {"log.retention.ms": "86400000"}, "every_broker": False}
    assert http("POST", "/v1/settings", own)[1]["edits"][0]["what"].endswith("of broker 0")
    assert http("GET", "/v1/settings")[1]["settings"][0]["source"] == "broker"
    assert http("POST", "/v1/settings", {**own, "values": {"log.retention.ms": None}})[0] == 200
    assert http("GET", "/v1/topics/no-such-topic/settings")[0] == 404


def test_a_group_is_moved_only_without_members(broker, http):
    settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    producer = Producer(settings)
    for number in range(10):
        producer.produce("orders", b"x", partition=number % 2)
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": "readers", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
    path = "/v1/groups/readers/offsets"
    at = {"topic": "orders", "partition": 0, "offset": 4, "end_offset": 5, "lag": 1}
    assert http("GET", path) == (200, {"group": "readers", "offsets": [at]})
    edits = [{"action": "replace", "what": "orders-0", "before": 4, "after": 0}]
    assert http("POST", path + DRY, {"to": "earliest"}) == (200, {"dry_run": True, "edits": edits})
    assert http("GET", path)[1]["offsets"] == [at]
    assert http("POST", path, {"to": "earliest"})[1]["edits"] == edits
    assert http("GET", path)[1]["offsets"] == [{**at, "offset": 0, "lag": 5}]
    http("POST", path, {"to": "offset", "value": 10**18, "topics": {"orders": []}})
    assert [one["offset"] for one in http("GET", path)[1]["offsets"]] == [5, 5]
    assert http("POST", path, {"to": "time", "value": 0, "topics": {"orders": [1]}})[1]["edits"][0]["after"] == 0
    status, failure = http("POST", path, {"to": "latest", "topics": {"orders": [7]}})
    assert (status, failure["error"]) == (404, "UNKNOWN_TOPIC_OR_PARTITION")
    assert http("POST", "/v1/groups/unheard/offsets", {"to": "latest"})[0] == 400
    consumer.subscribe(["orders"])
    while not consumer.assignment():
        consumer.poll(0.1)
    for query in ("", DRY):
        assert http("POST", path + query, {"to": "latest"})[1]["error"] == "NON_EMPTY_GROUP"
        assert http("DELETE", "/v1/groups/readers" + query)[1]["error"] == "NON_EMPTY_GROUP"
        forget = f"{path}?topic=orders{query.replace('?', '&')}"
        assert http("DELETE", forget)[1]["error"] == "GROUP_SUBSCRIBED_TO_TOPIC"
    assert [one["offset"] for one in http("GET", path)[1]["offsets"]] == [5, 0]
    status, group = http("GET", "/v1/groups/readers")
    assert (status, group["type"], len(group["members"][0]["partitions"])) == (200, "classic", 2)
    consumer.close()
    gone = {"action": "remove", "what": "orders-0", "before": 5, "after": None}
    assert http("DELETE", f"{path}?topic=orders&dry_run=true")[1]["edits"][0] == gone
    assert len(http("DELETE", f"{path}?topic=orders")[1]["edits"]) == 2
    assert http("GET", path)[1]["offsets"] == []
    assert http("DELETE", "/v1/groups/readers" + DRY)[0] == 200
    assert http("DELETE", "/v1/groups/readers")[0] in (200, 404), "the broker may drop a group without offsets itself"
    assert http("DELETE", "/v1/groups/readers")[1]["error"] == "GROUP_ID_NOT_FOUND"


def test_a_topic_is_created_grown_trimmed_and_deleted(broker, http):
    path = "/v1/topics/made.over-http"
    wanted = {"partitions": 2, "settings": {"retention.ms": "86400000"}}
    edit = {
        "action": "create",
        "what": "topic made.over-http",
        "before": None,
        "after": {"partitions": 2, "replicas": 1, "settings": wanted["settings"]},
    }
    assert http("PUT", path + DRY, wanted) == (200, {"dry_run": True, "edits": [edit]})
    assert http("GET", path)[0] == 404
    assert http("PUT", path, wanted) == (200, {"dry_run": False, "edits": [edit]})
    assert http("PUT", path, wanted)[1]["error"] == "TOPIC_ALREADY_EXISTS"
    grown = {"action": "replace", "what": "partitions of topic made.over-http", "before": 2, "after": 3}
    assert http("POST", f"{path}/partitions{DRY}", {"count": 3})[1]["edits"] == [grown]
    assert len(http("GET", path)[1]["partitions"]) == 2
    assert http("POST", f"{path}/partitions", {"count": 3})[1]["edits"] == [grown]
    assert http("POST", f"{path}/partitions", {"count": 3})[1]["edits"] == []
    assert http("POST", f"{path}/partitions", {"count": 1})[1]["error"] == "INVALID_PARTITIONS"
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        producer.produce("made.over-http", str(number), partition=2)
    assert producer.flush(60) == 0
    trimmed = {"action": "replace", "what": "start of made.over-http-2", "before": 0, "after": 7}
    before = {"before": {"0": 0, "2": 7}}
    assert http("POST", f"{path}/trim{DRY}", before)[1]["edits"] == [trimmed]
    assert http("GET", path)[1]["partitions"][2]["start_offset"] == 0
    assert http("POST", f"{path}/trim", before)[1]["edits"] == [trimmed]
    assert http("GET", path)[1]["partitions"][2] == {
        "partition": 2,
        "leader": 0,
        "replicas": [0],
        "in_sync": [0],
        "start_offset": 7,
        "end_offset": 10,
    }
    assert http("POST", f"{path}/trim", {"before": {"2": 11}})[1]["error"] == "OFFSET_OUT_OF_RANGE"
    assert http("POST", f"{path}/trim", {"before": {"9": 1}})[0] == 404
    removed = {"action": "remove", "what": "topic made.over-http", "before": {"partitions": 3}, "after": None}
    assert http("DELETE", path + DRY)[1]["edits"] == [removed]
    assert http("DELETE", path)[1]["edits"] == [removed]
    assert http("DELETE", path)[0] == 404


@pytest.mark.parametrize("name", ["a%2Fb", "..", "%2E%2E", "a" * 250, "%F0%9F%98%80", "%00", "a%0Ab"])
def test_a_topic_that_cannot_be_is_refused_also_on_a_dry_run(http, name):
    for query in (DRY, ""):
        status, answer = http("PUT", f"/v1/topics/{name}{query}", {})
        assert (status, answer["error"]) == (400, "INVALID_TOPIC_EXCEPTION")


def test_transactions_are_listed_and_one_that_does_not_hang_is_not_aborted(broker, http):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "writer", "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("ledger", b"x", partition=1)
    assert producer.flush(60) == 0
    (listed,) = http("GET", "/v1/transactions?state=Ongoing")[1]["transactions"]
    assert listed["transactional_id"] == "writer"
    found = http("GET", "/v1/transactions/writer")[1]
    assert (found["state"], found["partitions"]) == ("Ongoing", [{"topic": "ledger", "partition": 1}])
    assert http("GET", "/v1/transactions/unheard")[0] == 404
    path = "/v1/topics/ledger/transactions/abort"
    for query in ("", DRY):
        wanted = {"partition": 1, "producer_id": found["producer_id"]}
        status, failure = http("POST", path + query, wanted)
        assert (status, failure["error"]) == (400, "CONCURRENT_TRANSACTIONS")
        assert http("POST", path + query, {**wanted, "producer_id": 10**6})[1]["error"] == "INVALID_TXN_STATE"
        assert http("POST", path + query, {**wanted, "partition": 9})[0] == 404
    assert http("GET", "/v1/transactions/writer")[1]["state"] == "Ongoing"
    producer.commit_transaction(60)


def test_what_is_done_is_done_with_the_rights_of_the_caller(http):
    assert http("PUT", "/v1/users/mover/SCRAM-SHA-256", {"password": "word-of-mover"})[0] == 200
    group = {"resource": "group", "name": "movers", "principal": "User:mover", "operation": "read"}
    topic = {"resource": "topic", "name": "orders", "principal": "User:mover", "operation": "read"}
    path, wanted = "/v1/groups/movers/offsets", {"to": "latest", "topics": {"orders": [0]}}
    assert http("POST", path, wanted, "mover")[1]["error"] == "GROUP_AUTHORIZATION_FAILED"
    assert http("POST", "/v1/acls", {**group, "permission": "allow"})[0] == 200
    before = http("GET", path)[1]["offsets"]
    assert http("POST", path, wanted, "mover")[0] in (403, 404)  # the route's own right is there, the topic's is not
    assert http("GET", path, user="mover")[1]["offsets"] == []
    assert http("GET", path)[1]["offsets"] == before
    assert http("POST", "/v1/acls", {**topic, "permission": "allow"})[0] == 200
    assert http("POST", path, wanted, "mover")[0] == 200
    assert http("GET", path, user="mover")[1]["offsets"] == http("GET", path)[1]["offsets"]
    assert http("DELETE", "/v1/groups/movers", user="mover")[1]["error"] == "GROUP_AUTHORIZATION_FAILED"
    remove = {**group, "operation": "delete", "permission": "allow"}
    assert http("POST", "/v1/acls", remove)[0] == 200
    assert http("DELETE", f"{path}?topic=ledger", user="mover")[1]["error"] == "TOPIC_AUTHORIZATION_FAILED"
    assert http("DELETE", f"{path}?topic=orders&dry_run=true", user="mover")[0] == 200
    assert http("DELETE", "/v1/groups/movers", user="mover")[0] == 200
    for method, change, body in (
        ("PUT", "/v1/users/mover/SCRAM-SHA-256", {"password": "x"}),
        ("POST", "/v1/acls", {**topic, "permission": "allow"}),
        ("POST", "/v1/settings", {"values": {"log.retention.ms": None}}),
        ("POST", "/v1/topics/orders/settings", {"values": {"retention.ms": None}}),
    ):
        assert http(method, change + DRY, body, "mover")[0] == 403, "a dry run asks for the same right"
