"""The console of a cluster with access control: logins, users, rights and quotas; who sees what."""

import json
import re

import pytest

from millstream.config.properties.access import STANDARD_AUTHORIZER
from millstream.console import kept, sessions
from millstream.console.application import create
from millstream.console.rights import Rule, decide
from millstream.console.settings import Settings
from millstream.testing.process import Broker

pytestmark = pytest.mark.process

PASSWORD = "a-word-for-alice-2207"
OWN = {"Origin": "http://localhost"}


@pytest.fixture(scope="module")
def broker():
    settings = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "listener.security.protocol.map": "A:PLAINTEXT,S:SASL_PLAINTEXT",
        "listener.name.s.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "connection.failed.authentication.delay.ms": 20,
    }
    with Broker(None, settings, listen="A://127.0.0.1:0,S://127.0.0.1:0", shards=1) as started:
        yield started


class Visitor:
    def __init__(self, settings):
        self.application = create(settings)
        self.client = self.application.test_client()

    def close(self):
        self.application.extensions["console"].close()

    def send(self, path, **fields):
        token = re.search(
            r'name="token" value="([^"]+)"', self.client.get("/login" if self.logged_out() else "/rights").text
        )[1]
        return self.client.post(path, data={"token": token, "step": "do", **fields}, headers=OWN)

    def logged_out(self):
        return self.client.get("/rights").status_code == 302


@pytest.fixture(scope="module")
def superuser(broker):
    """Through the socket file, as the user that runs the broker."""
    found = Visitor(Settings(f"{broker.data_dir}/admin.sock"))
    assert found.send("/users/password", user="alice", mechanism="SCRAM-SHA-256", password=PASSWORD).status_code == 303
    assert found.send("/new-topic", name="orders", partitions="1").status_code == 303
    assert found.send("/new-topic", name="secrets", partitions="1").status_code == 303
    yield found
    found.close()


@pytest.fixture
def alice(broker, superuser):
    listener = json.loads((broker.data_dir / "broker.json").read_text())["listeners"]["S"]
    found = Visitor(Settings(listener, login="SCRAM-SHA-256"))
    yield found
    found.close()


def rule(operation="read", name="orders", permission="allow", **more):
    fields = {"resource_type": "topic", "name": name, "pattern": "literal", "principal": "User:alice", "host": "*"}
    return {**fields, "operation": operation, "permission": permission, **more}


def test_a_visitor_logs_in_and_sees_what_the_user_may_see(superuser, alice, monkeypatch):
    monkeypatch.setattr(sessions, "FAILED_PAUSE_S", 0.0)
    assert superuser.send("/rights/add", **rule()).status_code == 303
    asked = alice.client.get("/topics?q=o")
    assert asked.status_code == 302
    assert asked.headers["Location"] == "/login?next=%2Ftopics%3Fq%3Do"
    wrong = alice.send("/login", name="alice", password="another")
    assert wrong.status_code == 403
    assert "another" not in wrong.text
    assert alice.client.get("/topics").status_code == 302
    right = alice.send("/login", name="alice", password=PASSWORD, next="/topics?q=o")
    assert (right.status_code, right.headers["Location"]) == (303, "/topics?q=o")
    cookie = right.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    page = alice.client.get("/topics").text
    assert ">orders</a>" in page
    assert "secrets" not in page
    assert alice.client.get("/topics/secrets").status_code == 404
    assert alice.client.get("/topics/orders/messages").status_code == 200
    refused = alice.send("/topics/orders/produce", value="x", form="text")
    assert refused.status_code == 400
    assert "TOPIC_AUTHORIZATION_FAILED" in refused.text
    assert alice.send("/logout").status_code == 303
    assert alice.client.get("/topics").status_code == 302
    assert superuser.send("/rights/remove", **rule()).status_code == 303


@pytest.mark.parametrize("target", ["//evil.example/", "https://evil.example/", "/\\evil.example"])
def test_a_login_leads_to_no_other_site(alice, target):
    answer = alice.send("/login", name="alice", password=PASSWORD, next=target)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")


def test_a_login_over_tls_has_a_secure_cookie(alice):
    token = re.search(r'name="token" value="([^"]+)"', alice.client.get("/login").text)[1]
    form = {"token": token, "name": "alice", "password": PASSWORD}
    answer = alice.client.post("/login", data=form, headers={"Origin": "https://localhost"})
    assert "Secure" in answer.headers["Set-Cookie"]


def test_a_login_ends_by_itself(alice, monkeypatch):
    monkeypatch.setattr(kept, "LOGIN_S", 0)
    assert alice.send("/login", name="alice", password=PASSWORD).status_code == 303
    assert alice.client.get("/users").status_code == 302


def test_users_rights_and_quotas_are_shown_changed_and_taken_away(superuser):
    assert "alice" in superuser.client.get("/users").text
    assert PASSWORD not in superuser.client.get("/users").text
    preview = superuser.client.post(
        "/rights/add",
        data={"token": _token(superuser), "step": "preview", **rule("write", principal="bob")},
        headers=OWN,
    )
    assert "allow User:bob to write topic orders" in preview.text
    assert "User:bob" not in superuser.client.get("/rights?q=bob").text.split("<tbody>")[-1]
    assert superuser.send("/rights/add", **rule("write", principal="bob")).status_code == 303
    answer = superuser.client.get("/rights?who=bob&what=describe&type=topic&name=orders").text
    assert "<strong>Yes</strong>" in answer
    assert "allow User:bob to write topic orders" in answer
    assert "<strong>No</strong>" in superuser.client.get("/rights?who=eve&what=read&type=topic&name=orders").text
    assert superuser.send("/rights/remove", **rule("write", principal="User:bob")).status_code == 303
    assert superuser.send("/rights/remove", **rule("write", principal="User:bob")).status_code == 400
    assert superuser.send("/rights/add", **rule("dance")).status_code == 400

    quota = {"user": "alice", "key": "producer_byte_rate"}
    assert superuser.send("/quotas/set", value="1048576", **quota).status_code == 303
    shown = superuser.client.get("/quotas").text
    assert "user alice" in shown
    assert "1,048,576" in shown
    assert superuser.send("/quotas/set", value="-1", **quota).status_code == 400
    assert superuser.send("/quotas/set", value="1", key="producer_byte_rate").status_code == 400
    assert superuser.send("/quotas/set", remove="1", **quota).status_code == 303
    assert "user alice" not in superuser.client.get("/quotas").text

    assert superuser.send("/users/password", user="bob", mechanism="SCRAM-SHA-512", password="b").status_code == 303
    assert superuser.send("/users/remove", user="bob", mechanism="SCRAM-SHA-512").status_code == 303
    assert ">bob</a>" not in superuser.client.get("/users").text


def test_a_read_only_console_changes_no_rights(broker, superuser):
    found = Visitor(Settings(f"{broker.data_dir}/admin.sock", read_only=True))
    try:
        assert "Add an entry" not in found.client.get("/rights").text
        for path, fields in (
            ("/rights/add", rule("write", principal="User:mallory")),
            ("/users/password", {"user": "mallory", "mechanism": "SCRAM-SHA-256", "password": "x"}),
            ("/quotas/set", {"user": "mallory", "key": "producer_byte_rate", "value": "1"}),
        ):
            refused = found.send(path, **fields)
            assert refused.status_code == 400
            assert "this console is read only" in refused.text
    finally:
        found.close()
    for path in ("/rights", "/users", "/quotas"):
        assert "mallory" not in superuser.client.get(path).text


def _token(visitor):
    return re.search(r'name="token" value="([^"]+)"', visitor.client.get("/rights").text)[1]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (("User:a", "h", "read", "topic", "orders"), True),
        (("User:a", "h", "describe", "topic", "orders"), True),  # READ implies it
        (("User:a", "h", "write", "topic", "orders"), False),
        (("User:a", "bad", "read", "topic", "orders"), False),  # a DENY of this address
        (("User:b", "h", "read", "topic", "orders-eu"), True),  # by prefix and for everybody
        (("User:b", "h", "read", "topic", "other"), None),
        (("User:c", "h", "alter-configs", "group", "g"), True),  # ALL on the wildcard
        (("User:c", "h", "read", "topic", "orders"), False),
    ],
)
def test_a_question_is_decided_as_by_kafka(question, expected):
    rules = [
        Rule("topic", "orders", "literal", "User:a", "*", "read", "allow"),
        Rule("topic", "orders", "literal", "User:a", "bad", "all", "deny"),
        Rule("topic", "orders-", "prefixed", "User:*", "*", "read", "allow"),
        Rule("group", "*", "literal", "User:c", "*", "all", "allow"),
    ]
    decision = decide(rules, *question)
    assert decision.allowed is expected
    assert bool(decision.rules) == bool(expected) or not decision.allowed


def test_an_open_cluster_says_that_it_has_no_rights(broker_factory):
    found = Visitor(Settings(broker_factory().bootstrap))
    try:
        shown = found.client.get("/rights")
        assert shown.status_code == 200
        assert "Access is not controlled in this cluster" in shown.text
        assert "SECURITY_DISABLED" in shown.text
        for path in ("/users", "/quotas"):
            assert found.client.get(path).status_code == 200, path
    finally:
        found.close()
