"""The console under /console of three brokers with TLS, logins and rights: visitors act as themselves everywhere."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from console_support import Secured, secured
from console_visitor import Browser

from issuer import token
from millstream.cli.__main__ import main
from millstream.client.connection import Connection
from millstream.client.security import Login, Security
from millstream.errors import MillstreamError
from millstream.peers.secured import CALLER_OPENING, CLIENT_OPENING
from millstream.secure.options import TlsOptions
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.sasl import ON_BEHALF
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as started:
        yield started


def browser(found: Secured, number: int = 0, user: str = "", own: str = "") -> Browser:
    made = Browser(
        found.brokers[number], found.words, found.keys / "ca.pem", str(found.keys / f"{own}.pem") if own else ""
    )
    if user:
        answer = made.log_in(user)
        assert answer.status == 303, answer.text
    return made


@pytest.mark.parametrize("number", [0, 1, 2])
def test_each_broker_serves_it_and_every_leader_is_reached(found: Secured, number: int) -> None:
    sent_away = browser(found, number).get("/console/topics")
    assert (sent_away.status, sent_away.headers["Location"]) == (302, "/console/login?next=%2Fconsole%2Ftopics")
    visitor = browser(found, number, "admin")
    login = next(cookie for cookie in visitor.set if cookie.startswith("millstream-login-"))
    assert all(part in login for part in ("HttpOnly", "SameSite=Strict", "Secure", "Path=/console"))
    page = visitor.get("/console/topics/orders/messages?from=oldest&count=500").text
    assert all(f"order {each}" in page for each in range(30)), "the three partitions are led by different brokers"
    made = visitor.post("/console/new-topic", name=f"made-by-{number}", partitions="3", step="do")
    assert made.headers["Location"] == f"/console/topics/made-by-{number}/messages"
    assert visitor.post(f"/console/topics/made-by-{number}/produce", value="hello", form="text").status == 303
    assert "hello" in visitor.get(f"/console/topics/made-by-{number}/messages?from=oldest").text


@pytest.mark.parametrize("how", ["password", "certificate", "token"])
def test_visitors_prove_who_they_are_and_see_no_more_than_they_may(found: Secured, how: str) -> None:
    if how == "certificate":
        visitor, user = browser(found, 1, own="carol"), "carol"
    elif how == "password":
        visitor, user = browser(found, 1, "reader"), "reader"
    else:
        visitor, user = browser(found, 1), "svc-orders"
        assert visitor.post("/console/login", bearer=token()).status == 303
    page = visitor.get("/console/topics").text
    assert f"User:{user}" in page
    assert "orders" in page and "secrets" not in page
    assert "order 3" in visitor.get("/console/topics/orders/messages?from=oldest").text
    assert visitor.get("/console/topics/secrets/messages").status == 404
    refused = visitor.post("/console/topics/orders/delete", typed="orders", step="do")
    assert "TOPIC_AUTHORIZATION_FAILED" in refused.text
    assert visitor.get("/console/audit").status == 403


def test_a_wrong_login_is_refused_and_recorded(found: Secured) -> None:
    visitor = browser(found, 2)
    assert visitor.log_in("reader", "no-such-word").status == 403
    assert visitor.post("/console/login", bearer="no.such.token").status == 403
    assert not any(name.startswith("millstream-login") for name in visitor.cookies)
    assert visitor.log_in("reader").status == 303

    def logins() -> list[dict[str, Any]]:
        path = found.brokers[2].data_dir / "audit" / "audit.jsonl"
        every = map(json.loads, path.read_text().splitlines() if path.exists() else [])
        return [one for one in every if one["kind"] == "login" and one.get("listener") == "HTTP"]

    outcomes = ["failed", "failed", "succeeded"]
    until(lambda: [one["outcome"] for one in logins()[-3:]] == outcomes, logins)
    assert logins()[-1]["principal"] == "User:reader"


def test_logging_out_ends_the_login_for_who_has_copied_its_cookie(found: Secured) -> None:
    visitor, thief = browser(found, 0, "reader"), browser(found)
    thief.cookies = dict(visitor.cookies)
    assert thief.get("/console/topics").status == 200
    assert visitor.post("/console/logout").status == 303
    assert thief.get("/console/topics").status == 302
    elsewhere = browser(found, 1)
    elsewhere.cookies = dict(browser(found, 0, "reader").cookies)
    assert elsewhere.get("/console/topics").status == 302, "a login is one broker's"


def test_who_may_see_nothing_is_told_so(found: Secured) -> None:
    consumer = Consumer({**found.client, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()
    visitor = browser(found, 0, "nobody")
    for path, needed in {
        "topics": "No topic that User:nobody may see",
        "groups": "millstream acl create User:nobody describe --group NAME",
        "transactions": "No transactional id that User:nobody may see",
        "": "only what User:nobody may see",
    }.items():
        answer = visitor.get(f"/console/{path}")
        assert answer.status == 200
        assert needed in answer.text, path
        assert " yet" not in answer.text, f"{path}: nothing says that the cluster is empty"
    for path in ("rights", "users", "quotas", "settings", "tiers", "audit"):
        answer = visitor.get(f"/console/{path}")
        assert answer.status == 403, path
        assert "User:nobody needs" in answer.text or "CLUSTER_AUTHORIZATION_FAILED" in answer.text, path


def test_the_lag_of_topics_that_a_visitor_may_not_see_is_not_said_to_be_zero(found: Secured) -> None:
    consumer = Consumer({**found.client, "group.id": "audits"})
    consumer.commit(offsets=[TopicPartition("secrets", 0, 1)], asynchronous=False)
    consumer.close()
    at = ["--data", str(found.brokers[0].data_dir)]
    assert main(["acl", "create", "User:carol", "describe", "--group", "audits", *at]) == 0
    visitor = browser(found, 1, own="carol")
    pattern = re.compile(r"<tr><td class=\"name\"><a [^>]*>audits</a>.*?</tr>", re.DOTALL)
    row = until(lambda: pattern.search(visitor.get("/console/groups").text), "the entry is known to the second broker")
    assert '<td class="n">–</td>' in row[0] and '<td class="n">0</td>' not in row[0]
    page = visitor.get("/console/group?id=audits").text
    assert "No committed offset that User:carol may see" in page
    admin = browser(found, 1, "admin").get("/console/group?id=audits").text
    assert "secrets" in admin


def broker_of(found: Secured) -> tuple[str, int, TlsOptions]:
    host, _, port = str(found.brokers[0].settings["peer.listen"]).rpartition(":")
    own = Path(str(found.brokers[0].settings["listener.name.peer.ssl.keystore.location"]))
    return host, int(port), TlsOptions(keystore_location=str(own), truststore_location=str(own.parent / "ca.pem"))


def test_a_connection_that_has_yet_to_say_for_whom_it_acts_gets_nothing(found: Secured) -> None:
    host, port, tls = broker_of(found)
    silent = Connection(host, port, security=Security("SSL", tls, opening=CALLER_OPENING), timeout_s=60)
    with silent, pytest.raises(MillstreamError, match="lost the broker"):
        silent.call(MetadataRequest(topics=None), MetadataResponse, 9)
    for login in (Login("PLAIN", "admin", found.words["admin"]), Login(ON_BEHALF, "", host="127.0.0.1")):
        with pytest.raises(MillstreamError, match="login failed"):
            Connection(
                host, port, security=Security("SASL_SSL", tls, opening=CALLER_OPENING, login=login), timeout_s=60
            )
    with pytest.raises(MillstreamError, match="login failed"):  # another kind has no caller
        login = Login(ON_BEHALF, "admin", host="127.0.0.1")
        Connection(host, port, security=Security("SASL_SSL", tls, opening=CLIENT_OPENING, login=login), timeout_s=60)


def test_a_stranger_acts_for_nobody(found: Secured) -> None:
    host, port, _ = broker_of(found)
    stranger = TlsOptions(
        keystore_location=str(found.keys / "carol.pem"), truststore_location=str(found.keys / "ca.pem")
    )
    login = Login(ON_BEHALF, "admin", host="127.0.0.1")
    with pytest.raises(MillstreamError):
        security = Security("SASL_SSL", stranger, check_name=False, verify=False, opening=CALLER_OPENING, login=login)
        Connection(host, port, security=security, timeout_s=60)
    listener = found.brokers[0].bootstrap.rpartition(":")
    trusting = TlsOptions(truststore_location=str(found.keys / "ca.pem"))
    with pytest.raises(MillstreamError, match="takes no logins by MILLSTREAM-ON-BEHALF"):
        Connection(listener[0], int(listener[2]), security=Security("SASL_SSL", trusting, login=login), timeout_s=60)


def test_a_password_is_not_taken_in_clear(found: Secured) -> None:
    port = int(browser(found).host.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 60) as clear:
        clear.sendall(b"GET /console/login HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in clear.recv(4096)
