"""What hostile clients, visitors and links do to the console: names and records, addresses, forms, cookies."""

import http.client
import json
import re
import urllib.parse

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from console_visitor import Browser

from millstream.console.application import create
from millstream.console.payloads import SHOWN_MAX
from millstream.console.sessions import Sessions
from millstream.console.settings import Settings

pytestmark = pytest.mark.process

MARKUP = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
TURNED = "invoice\u202egnp.exe"


@pytest.fixture
def standing():
    application = create(Settings("127.0.0.1:1", login="PLAIN"))
    yield application.test_client()
    application.extensions["console"].close()


def token_of(page):
    return re.search(r'name="token" value="([^"]+)"', page)[1]


@pytest.mark.parametrize(
    "wanted",
    [
        "//elsewhere.example",
        "/\\elsewhere.example",
        "/\t/elsewhere.example",
        "/\n/elsewhere.example",
        "/\r\nSet-Cookie: a=b",
        "\t//elsewhere.example",
        "/ /elsewhere.example",
        "/\x00/elsewhere.example",
        "https://elsewhere.example/",
        "javascript:alert(1)",
        "/topics\\..\\x",
        "/\u2028/elsewhere.example",
    ],
)
def test_a_login_sends_nobody_elsewhere(standing, monkeypatch, wanted):
    monkeypatch.setattr(Sessions, "log_in", lambda *_: None)
    form = standing.get("/login", query_string={"next": wanted}).text
    given = {"token": token_of(form), "name": "a", "password": "b", "next": wanted}
    answer = standing.post("/login", data=given, headers={"Origin": "http://localhost"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    assert f'name="next" value="{"/"}"' in form


def test_a_login_leads_to_the_page_that_was_asked_for(standing, monkeypatch):
    monkeypatch.setattr(Sessions, "log_in", lambda *_: None)
    page = standing.get("/topics?q=a%20b&sort=-name")
    assert page.status_code == 302
    wanted = urllib.parse.parse_qs(urllib.parse.urlsplit(page.headers["Location"]).query)["next"][0]
    given = {"token": token_of(standing.get("/login").text), "name": "a", "password": "b", "next": wanted}
    answer = standing.post("/login", data=given, headers={"Origin": "http://localhost"})
    assert answer.headers["Location"] == wanted == "/topics?q=a%20b&sort=-name"


@pytest.fixture
def hostile(broker):
    """A topic with hostile records, and a group with a hostile name."""
    topic = broker.new_topic(partitions=1)
    producer = Producer({**broker.client, "message.max.bytes": 2 << 20})
    headers = [(MARKUP, MARKUP), (TURNED, b"\xff\x00"), ("a\r\nb: c", "d")]
    for value in (MARKUP, TURNED, "a\x00\x1b[31mb", "👩\u200d💻", json.dumps({MARKUP: TURNED})):
        producer.produce(topic, value, key=value, headers=headers)
    for letter in "abcdefgh":
        producer.produce(topic, letter * 1_000_000)
    assert producer.flush(60) == 0
    group = f"{TURNED} {MARKUP}\r\nX: y of {topic}"
    consumer = Consumer({**broker.client, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer.close()
    return topic, group


def test_records_and_names_stay_text_and_large_values_are_cut(broker, hostile):
    topic, group = hostile
    browser = Browser(broker)
    for path in (f"topics/{topic}/messages?from=oldest", f"topics/{topic}/groups", "groups", f"group?{query(group)}"):
        page = browser.get(f"/console/{path}")
        assert page.status == 200
        for seen in ("<img", "<script>alert", "\u202e", "\x00", "\x1b"):
            assert seen not in page.text, (path, seen)
    page = browser.get(f"/console/topics/{topic}/messages?from=oldest").text
    assert "invoice\\u202egnp.exe" in page
    assert "👩\u200d💻" in page
    assert page.count("… more, which the export has") == 8
    assert len(page) < 9 * SHOWN_MAX + (200 << 10)


def query(group):
    return urllib.parse.urlencode({"id": group})


def test_a_group_with_a_hostile_name_is_reset_and_no_header_is_made_of_it(broker, hostile):
    topic, group = hostile
    browser = Browser(broker)
    form = {"topic": topic, "to": "oldest", "id": group}
    preview = browser.post(f"/console/group/reset?{query(group)}", **form, step="preview")
    assert preview.status == 200, preview.text
    assert "<img" not in preview.text
    answer = browser.post("/console/group/delete", id=group, typed=group, step="do")
    assert "X" not in answer.headers
    assert all(len(cookie) < 4096 for cookie in browser.set)


def test_paths_that_lead_elsewhere_lead_nowhere(broker):
    host = Browser(broker).host
    for path in (
        "/console/../v1/topics",
        "/console/%2e%2e/v1/topics",
        "/console/static/../application.py",
        "/console/static/%2e%2e/application.py",
        "/console/static/..%2f..%2fsettings.py",
        "/console/static//etc/passwd",
        "/console/static/%00",
        "/console/topics/..%2f..%2f..%2fetc%2fpasswd/messages",
        "/console//elsewhere.example/",
        "/console/%0d%0aX-Made:%20up",
    ):
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.putrequest("GET", path, skip_host=False)
        connection.endheaders()
        with connection.getresponse() as answer:
            body = answer.read().decode()
            assert answer.status in (302, 308, 400, 404), (path, answer.status)
            assert answer.getheader("X-Made") is None
            assert not (answer.getheader("Location") or "").startswith("//"), path
        connection.close()
        assert "root:" not in body and "import" not in body


def test_what_a_page_says_once_it_says_once_and_its_first_form_works(broker):
    browser = Browser(broker)
    with browser.open("/console/topics") as first:  # a page that leaves before it is rendered
        token = token_of(first.read().decode())
    body = urllib.parse.urlencode({"token": token, "theme": "dark"})
    with browser.open("/console/theme", "POST", body) as chosen:
        assert chosen.status == 303, "the session of the first page has its token"
    made = browser.post("/console/new-topic", name="said-once", partitions="1", step="do")
    assert "was created" in browser.get(made.headers["Location"]).text
    assert "was created" not in browser.get("/console/topics").text


def test_a_form_of_another_page_changes_nothing(broker):
    browser = Browser(broker)
    for origin in ("http://elsewhere.example", "null", f"http://{browser.host}.elsewhere.example", ""):
        with browser.open("/console/new-topic", "POST", "name=forged&partitions=1&step=do", Origin=origin) as answer:
            assert answer.status == 403, origin
    assert browser.post("/console/new-topic", origin="https://elsewhere.example", name="forged").status == 403
    assert "forged" not in browser.get("/console/topics?q=forged").text.replace('value="forged"', "").replace(
        "“forged”", ""
    )
