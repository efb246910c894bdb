"""The console that a broker serves: it acts as its callers, and nothing that happens to it reaches the shards."""

import http.client
import json
import re
import signal
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from console_visitor import Browser

from millstream.admin.routing import Router
from millstream.app.console_requests import OPEN_MAX, ConsoleRequests
from millstream.app.side_frames import SideSettings
from millstream.app.side_process import SideProcess
from millstream.cli.__main__ import main
from millstream.console.message_pages import STREAMS_MAX
from millstream.testing.process import Broker
from waits import until

pytestmark = pytest.mark.process

PASSWORDS = {"admin": "admin-word-2207", "reader": "reader-word-4411", "changed": "changed-word-77"}


def side(broker: Broker) -> psutil.Process | None:
    children = psutil.Process(broker.pid).children()
    return next((each for each in children if "registry, console" in " ".join(each.cmdline())), None)


def produce(broker: Broker, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def open_broker() -> Iterator[Broker]:
    with Broker({"orders": 2}, shards=2) as started:
        produce(started, "orders", "one", "two")
        yield started


@pytest.fixture(scope="module")
def closed_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {
        "listener.security.protocol.map": "S:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "super.users": "User:admin",
        "connection.failed.authentication.delay.ms": 10,
    }
    with Broker(None, settings, listen="S://127.0.0.1:0", shards=1) as started:
        at = ["--data", str(started.data_dir)]
        file = tmp_path_factory.mktemp("words") / "word"
        for user, word in PASSWORDS.items():
            file.write_text(word)
            assert main(["user", "create", user, "--password-file", str(file), *at]) == 0
        admin = Browser(started, PASSWORDS)
        assert admin.log_in("admin").status == 303
        for topic in ("orders", "secrets"):
            assert admin.post("/console/new-topic", name=topic, partitions="1", step="do").status == 303
        assert main(["acl", "create", "User:reader", "read", "--topic", "orders", *at]) == 0
        yield started


def test_a_closed_console_costs_nothing(broker_factory: Any) -> None:
    broker = broker_factory(shards=1)
    first = Browser(broker).get("/")
    assert 'href="/console/"' in first.text
    assert side(broker) is None
    assert Browser(broker).get("/console/").status == 200
    assert side(broker) is not None


def test_an_open_broker_needs_no_login(open_broker: Broker) -> None:
    browser = Browser(open_broker)
    moved = browser.get("/console")
    assert (moved.status, moved.headers["Location"]) == (308, "/console/")
    page = browser.get("/console/topics/orders/messages?from=oldest")
    assert page.status == 200
    assert "one" in page.text and "two" in page.text
    assert "require-trusted-types-for" in page.headers["Content-Security-Policy"]
    assert [cookie for cookie in browser.set if "SameSite=Strict" not in cookie or "Path=/console" not in cookie] == []


def test_a_file_that_is_known_is_not_sent_again_and_the_connection_stays(open_broker: Broker) -> None:
    connection = http.client.HTTPConnection(Browser(open_broker).host, timeout=120)
    try:
        connection.request("GET", "/console/static/console.js")
        first = connection.getresponse()
        assert len(first.read()) > 1000
        connection.request("GET", "/console/static/console.js", headers={"If-None-Match": first.headers["ETag"]})
        again = connection.getresponse()
        assert (again.status, again.read()) == (304, b"")
        connection.request("GET", "/console/topics")
        assert connection.getresponse().status == 200
    finally:
        connection.close()


def test_what_only_the_broker_knows_is_shown_with_the_rights_for_it(closed_broker: Broker) -> None:
    admin, reader = Browser(closed_broker, PASSWORDS), Browser(closed_broker, PASSWORDS)
    assert admin.log_in("admin").status == reader.log_in("reader").status == 303
    for path in ("tiers", "caches", "pipelines", "machine", "audit"):
        assert admin.get(f"/console/{path}").status == 200, path
        refused = reader.get(f"/console/{path}")
        assert refused.status == 403, path
        assert f"User:reader needs {'ALTER' if path == 'audit' else 'DESCRIBE'} on the cluster" in refused.text
    assert "User:admin" in admin.get("/console/audit?q=CreateTopics").text


def test_a_topic_is_made_through_the_page_and_foreign_pages_are_refused(open_broker: Broker) -> None:
    browser = Browser(open_broker)
    made = browser.post("/console/new-topic", name="made-here", partitions="1", step="do")
    assert (made.status, made.headers["Location"]) == (303, "/console/topics/made-here/messages")
    assert "was created" in browser.get(made.headers["Location"]).text
    with browser.open("/console/new-topic", "POST", "name=x&step=do", Origin="http://elsewhere.example") as refused:
        assert refused.status == 403
        assert "elsewhere.example" in refused.read().decode()
    with browser.open("/console/new-topic", "POST", "name=x&step=do") as refused:  # without the form's token
        assert refused.status == 403
    assert browser.get("/console/", Host="rebound.example").status == 403


def test_the_process_dies_while_a_page_streams_and_is_replaced(open_broker: Broker) -> None:
    browser = Browser(open_broker)
    shards = [each.pid for each in psutil.Process(open_broker.pid).children() if each != side(open_broker)]
    with browser.open("/console/topics/orders/live") as stream:
        assert stream.readline() == b"retry: 3000\n"
        died = side(open_broker)
        assert died is not None
        died.send_signal(signal.SIGKILL)
        said = stream.read().decode()
    assert "event: failed\ndata: The console's process failed: the process ended." in said
    until(lambda: browser.get("/console/topics").status == 200, "the next process")
    fresh = side(open_broker)
    assert fresh is not None and fresh.pid != died.pid
    produce(open_broker, "orders", "three")
    assert [each.pid for each in psutil.Process(open_broker.pid).children() if each != fresh] == shards


@pytest.mark.slow
@pytest.mark.ci
def test_eight_streams_are_open_at_once_and_pages_are_served_beside_them(open_broker: Broker) -> None:
    browser = Browser(open_broker)
    streams = [browser.open("/console/topics/orders/live") for _ in range(STREAMS_MAX)]
    try:
        assert [stream.status for stream in streams] == [200] * STREAMS_MAX
        for _ in range(STREAMS_MAX, 50):  # windows of one visitor
            refused = browser.get("/console/topics/orders/live")
            assert refused.status == 503
            assert f"{STREAMS_MAX} live views and exports are open" in refused.text
        assert browser.get("/console/topics").status == 200
        assert browser.get("/healthz").status == 200
    finally:
        for stream in streams:
            stream.close()
    until(lambda: browser.get("/console/topics/orders/export?from=oldest").status == 200, "a place is free again")


@pytest.mark.slow
@pytest.mark.ci
def test_more_requests_than_places_are_refused_and_none_is_lost(open_broker: Broker) -> None:
    browser = Browser(open_broker)
    assert browser.get("/console/topics").status == 200
    stopped = side(open_broker)
    assert stopped is not None
    stopped.suspend()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(browser.get("/console/").status)) for _ in range(30)]
    try:
        for thread in threads:
            thread.start()
        until(lambda: len(found) >= 30 - OPEN_MAX, "the others are refused")
        assert set(found) == {503}
        assert browser.get("/healthz").status == 200
    finally:
        stopped.resume()
    for thread in threads:
        thread.join()
    assert sorted(found) == [200] * OPEN_MAX + [503] * (30 - OPEN_MAX)


def test_visitors_log_in_and_see_what_they_may(closed_broker: Broker) -> None:
    browser = Browser(closed_broker, PASSWORDS)
    sent_away = browser.get("/console/topics?q=x")
    assert (sent_away.status, sent_away.headers["Location"]) == (302, "/console/login?next=%2Fconsole%2Ftopics%3Fq%3Dx")
    wrong = browser.log_in("reader", "no-such-word")
    assert wrong.status == 403
    assert "the login failed" in wrong.text
    assert not any(name.startswith("millstream-login") for name in browser.cookies)
    assert browser.log_in("reader").status == 303
    login = next(cookie for cookie in browser.set if cookie.startswith("millstream-login-"))
    assert all(part in login for part in ("HttpOnly", "SameSite=Strict", "Path=/console", "Max-Age=28800"))
    page = browser.get("/console/topics").text
    assert "orders" in page and "secrets" not in page
    assert browser.get("/console/topics/secrets/messages").status == 404
    assert "TOPIC_AUTHORIZATION_FAILED" in browser.post("/console/topics/orders/delete", typed="orders", step="do").text
    admin = Browser(closed_broker, PASSWORDS)
    assert admin.log_in("admin").status == 303
    assert "secrets" in admin.get("/console/topics").text
    assert browser.post("/console/logout").headers["Location"] == "/console/login"
    assert browser.get("/console/topics").status == 302
    assert admin.get("/console/topics").status == 200


@pytest.mark.slow
@pytest.mark.ci
def test_cookies_of_a_proxy_with_tls_are_secure(closed_broker: Broker) -> None:
    browser = Browser(closed_broker, PASSWORDS)
    fields = {"name": "admin", "password": PASSWORDS["admin"]}
    assert browser.post("/console/login", f"https://{browser.host}", **fields).status == 303
    sent = [cookie for cookie in browser.set if cookie.startswith("millstream-login-")]
    assert len(sent) == 1
    assert "; Secure" in sent[0]


def test_a_login_is_void_when_the_user_changes(closed_broker: Broker, tmp_path: Path) -> None:
    browser = Browser(closed_broker, PASSWORDS)
    assert browser.log_in("changed").status == 303
    assert browser.get("/console/topics").status == 200
    word = tmp_path / "word"
    word.write_text("another-word-of-them-1")
    assert main(["user", "alter", "changed", "--password-file", str(word), "--data", str(closed_broker.data_dir)]) == 0
    assert browser.get("/console/topics").status == 302
    stolen = Browser(closed_broker, PASSWORDS)
    stolen.cookies = {name: key for name, key in browser.cookies.items() if name.startswith("millstream-login-")}
    assert stolen.get("/console/topics").status == 302


def test_consoles_on_one_host_leave_each_others_cookies_alone(closed_broker: Broker, open_broker: Broker) -> None:
    closed, opened = Browser(closed_broker, PASSWORDS), Browser(open_broker)
    opened.cookies = closed.cookies  # a browser sends a host's cookies to each of its ports
    assert closed.log_in("admin").status == 303
    form = opened.get("/console/new-topic").text
    assert closed.get("/console/topics").status == 200
    token = re.search(r'name="token" value="([^"]+)"', form)
    assert token is not None
    body = urllib.parse.urlencode({"token": token[1], "name": "x", "step": "preview"})
    with opened.open("/console/new-topic", "POST", body) as answer:
        assert answer.status == 200
    assert opened.post("/console/theme", theme="dark").status == 303
    assert closed.get("/console/topics").status == 200
    assert closed.post("/console/logout").status == 303
    assert closed.get("/console/topics").status == 302


def test_what_the_console_showed_is_in_the_audit(closed_broker: Broker) -> None:
    browser = Browser(closed_broker, PASSWORDS)
    assert browser.log_in("admin").status == 303
    assert browser.get("/console/topics/secrets/messages").status == 200
    path = closed_broker.data_dir / "audit" / "audit.jsonl"

    def read() -> list[dict[str, Any]]:
        lines = path.read_text().splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if one["kind"] == "read"]

    found = until(read, "the record")
    assert {key: found[-1][key] for key in ("principal", "api", "what")} == {
        "principal": "User:admin",
        "api": "console",
        "what": ["secrets"],
    }
    assert PASSWORDS["admin"] not in path.read_text()


@pytest.mark.slow
@pytest.mark.ci
def test_a_read_only_console_has_no_page_that_changes(broker_factory: Any) -> None:
    browser = Browser(broker_factory(shards=1, settings={"console.read.only": "true"}))
    assert browser.get("/console/new-topic").status == 404
    assert "read only" in browser.get("/console/topics").text


@pytest.mark.slow
@pytest.mark.ci
def test_a_console_that_is_off_is_not_there(broker_factory: Any) -> None:
    browser = Browser(broker_factory(shards=1, settings={"console.enabled": "false"}))
    assert browser.get("/console/").status == 404
    assert "/console/" not in browser.get("/").text


def test_a_console_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.app import console_requests

    monkeypatch.setattr(console_requests, "_PACKAGES", ("no_such_package",))
    missing = ConsoleRequests(SideProcess(SideSettings("", "", "", False, b"")), _never, "")
    router = Router(lambda: None)
    router.mount("console", missing.answer, needs=lambda _: (), body_bytes_max=0, count=_nothing, failure=_never)
    answer = router.answer(*router.find("GET", "/console/"))
    assert answer.status == 501
    assert b"[console]" in answer.body
    assert not missing.works


def test_an_idle_process_ends_and_the_next_request_starts_another() -> None:
    process = SideProcess(SideSettings("", "", "here:1", False, b"secret"), idle_s=1.0)
    requests = ConsoleRequests(process, _never, "")
    router = Router(lambda: None)
    router.mount("console", requests.answer, needs=lambda _: (), body_bytes_max=0, count=_nothing, failure=_never)
    own = psutil.Process()

    def running() -> list[psutil.Process]:
        return [each for each in own.children() if each.status() != psutil.STATUS_ZOMBIE]

    before = len(running())
    try:
        for _ in range(2):
            assert router.answer(*router.find("GET", "/console/static/icon.svg")).status == 200
            until(lambda: len(running()) == before, "it ended")
    finally:
        process.close()


def _never(*_: Any) -> Any:
    raise AssertionError("nothing asks for it")


def _nothing() -> None:
    time.monotonic()
