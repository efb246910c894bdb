"""The console against a real broker, at the level of WSGI: pages, steps of messages, live view, export, guard."""

import html
import json
import re
import threading
from urllib.parse import quote, urlencode

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.cli.__main__ import main
from millstream.console.access import Access
from millstream.console.application import create
from millstream.console.guard import POLICY
from millstream.console.message_pages import STREAMS_MAX
from millstream.console.settings import Settings

pytestmark = pytest.mark.process

HOSTILE = '"><script>alert(1)</script>'
OFFSETS = re.compile(r"<small>(\d+) ·</small> ([\d,]+)</span>")


@pytest.fixture(scope="module")
def console(broker):
    application = create(Settings(broker.bootstrap))
    yield application.test_client()
    application.extensions["console"].close()


def places(page):
    """Partition and offset of each message of a page, in its order."""
    return [(int(partition), int(offset.replace(",", ""))) for partition, offset in OFFSETS.findall(page)]


def next_of(page):
    found = re.search(r'<a class="button" href="([^"]+)"(?: data-search[^>]*)?>(?:Older|Later|Search on)</a>', page)
    return html.unescape(found[1]) if found else None


@pytest.fixture(scope="module")
def filled(broker):
    """A topic of three partitions, 130 records of which one partition has most."""
    topic = broker.new_topic(partitions=3)
    producer = Producer(broker.client)
    for number in range(130):
        partition = 0 if number % 13 else 1 + number % 2
        document = json.dumps({"n": number, "of": {"kind": "odd" if number % 2 else "even"}})
        producer.produce(topic, document, key=f"k-{number}", partition=partition, timestamp=1_700_000_000_000 + number)
    producer.flush()
    return topic


def test_every_page_opens_and_forbids_what_is_not_its_own(broker, console, filled):
    group = f"group of {filled} {HOSTILE}"
    consumer = Consumer({**broker.client, "group.id": group})
    consumer.commit(offsets=[TopicPartition(filled, 0, 100)], asynchronous=False)
    consumer.close()
    quoted = urlencode({"id": group})
    paths = [
        "/",
        "/brokers",
        "/brokers/0",
        "/topics",
        "/groups",
        "/transactions",
        "/schemas",
        "/settings",
        "/settings?set=1",
    ]
    paths += [f"/topics/{filled}{tab}" for tab in ("", "/messages", "/groups", "/properties")] + [f"/group?{quoted}"]
    for path in paths:
        answer = console.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert "<script>" not in answer.text, path
        assert "style=" not in answer.text, path
    lag = console.get(f"/group?{quoted}").text
    assert HOSTILE not in lag
    assert html.escape(HOSTILE, quote=True).replace("&#x27;", "&#39;") in lag.replace("&#34;", "&quot;")
    assert filled in console.get(f"/topics?q={filled}").text
    assert group in html.unescape(console.get(f"/topics/{filled}/groups").text)


@pytest.mark.parametrize("start", ["newest", "oldest"])
def test_steps_show_every_record_once_in_either_direction(console, filled, start):
    path, seen = f"/topics/{filled}/messages?from={start}&limit=20", []
    while path is not None:
        page = console.get(path).text
        found = places(page)
        assert len(found) <= 20
        seen += found
        path = next_of(page)
    assert len(seen) == len(set(seen)) == 130
    if start == "oldest":
        assert seen[0] == (1, 0) or seen[0][1] == 0


def test_a_filter_finds_what_matches_and_says_where_it_is_wrong(console, filled):
    query = urlencode({"filter": 'value.of.kind = "odd" and value.n >= 100 and key ~ "1[01]."', "limit": 500})
    page = console.get(f"/topics/{filled}/messages?{query}").text
    assert len(places(page)) == 10
    wrong = console.get(f"/topics/{filled}/messages?{urlencode({'filter': 'value.n >'})}")
    assert wrong.status_code == 400
    assert "missing at the end" in wrong.text
    for start in ("tomorrow", "-5", "9" * 30):
        assert console.get(f"/topics/{filled}/messages?{urlencode({'from': start})}").status_code == 400


def test_positions_are_offsets_times_and_partitions(console, filled):
    by_offset = places(console.get(f"/topics/{filled}/messages?from=50&partition=0&limit=20").text)
    assert by_offset[0] == (0, 50)
    assert {partition for partition, _ in by_offset} == {0}
    by_time = console.get(f"/topics/{filled}/messages?from=2023-11-14T22:13:20.100Z&limit=500").text
    assert len(places(by_time)) == 30
    for partition in ("7", "-1", "x"):
        assert console.get(f"/topics/{filled}/messages?partition={partition}").status_code == 400


def test_a_newest_step_with_many_matches_keeps_the_newest_and_loses_none(console, filled):
    query = urlencode({"filter": "value.n >= 0", "limit": 30})
    path, seen = f"/topics/{filled}/messages?{query}", []
    while path is not None:
        page = console.get(path).text
        seen += places(page)
        path = next_of(page)
    assert len(seen) == len(set(seen)) == 130


def test_aborted_records_and_markers_are_shown_only_on_request(broker, console):
    topic = broker.new_topic()
    producer = Producer({**broker.client, "transactional.id": f"console {topic}"})
    producer.init_transactions()
    for commit in (True, False):
        producer.begin_transaction()
        producer.produce(topic, "kept" if commit else "dropped")
        producer.flush()  # an abort drops what is not sent yet
        (producer.commit_transaction if commit else producer.abort_transaction)()
    producer.begin_transaction()
    producer.produce(topic, "undecided")
    producer.flush()
    plain = console.get(f"/topics/{topic}/messages?from=oldest").text
    assert "kept" in plain
    assert "dropped" not in plain
    assert "undecided" not in plain
    everything = console.get(f"/topics/{topic}/messages?from=oldest&all=1").text
    assert re.findall(r'data-mark="(\w*)"', everything) == ["transaction", "commit", "aborted", "abort", "open"]
    producer.abort_transaction()
    del producer  # before the broker ends


def test_hostile_records_are_text(broker, console):
    topic = broker.new_topic()
    producer = Producer(broker.client)
    producer.produce(topic, HOSTILE, key=HOSTILE, headers=[(HOSTILE, HOSTILE)])
    producer.produce(topic, b"\0\0\0\0\x01\xff", key=b"tombstone", headers=[("h", None)])
    producer.produce(topic, None, key=b"k")
    producer.produce(topic, b'{"half": "\\ud800"}', key=b'"\\udfff"')  # no text of a page can hold these
    producer.flush()
    for query in ({}, {"filter": "value.half ~ 'd800' or key ~ 'x'"}):
        assert console.get(f"/topics/{topic}/messages", query_string=query).status_code == 200
    page = console.get(f"/topics/{topic}/messages?from=oldest").text
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") >= 5
    assert ">tombstone</span>" in page
    assert "00 00 00 00 01 ff" in page


def test_a_live_view_shows_what_arrives(broker, console):
    topic = broker.new_topic()
    answer = console.get(f"/topics/{topic}/live?{urlencode({'filter': 'value.n = 2'})}")
    assert answer.mimetype == "text/event-stream"
    events = iter(answer.response)
    assert next(events) == b"retry: 3000\n\n"

    def send():
        producer = Producer(broker.client)
        for number in range(3):
            producer.produce(topic, json.dumps({"n": number}))
        producer.flush()

    first = next(events)  # the first heartbeat: the ends are known by now
    assert first.startswith(b"event: skipped")
    sender = threading.Thread(target=send)
    sender.start()
    shown = next(event for event in events if event.startswith(b"event: message"))
    sender.join()
    answer.close()
    assert shown.endswith(b"\n\n")
    assert b"&#34;n&#34;: 2" in shown


def test_an_export_has_every_record_as_a_line(console, filled):
    answer = console.get(f"/topics/{filled}/export?from=newest")
    assert "attachment" in answer.headers["Content-Disposition"]
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert {json.loads(line["value"])["n"] for line in lines} == set(range(130))
    assert lines[0].keys() == {"topic", "partition", "offset", "timestamp", "key", "value"}


def test_masked_fields_are_in_no_page_no_filter_no_live_view_and_no_export(broker):
    topic, secret = broker.new_topic(), "4929-of-nobody"
    other = broker.new_topic()
    producer = Producer(broker.client)
    for name in (topic, other):
        producer.produce(
            name, json.dumps({"card": {"number": secret}, "total": 3}), key="k", headers=[("Auth", secret)]
        )
        producer.produce(name, secret, key="plain")
    producer.flush()
    masks = (f"{topic}/value.card.number", f"{topic}/headers.auth")
    application = create(Settings(broker.bootstrap, masks=masks))
    console = application.test_client()
    shown = console.get(f"/topics/{topic}/messages?from=oldest").text
    assert secret not in shown
    assert "Masked for everybody" in shown and "•••" in shown
    exported = console.get(f"/topics/{topic}/export?from=oldest").text
    assert secret not in exported and '"total": 3' in exported.replace("\\", "")
    assert secret in console.get(f"/topics/{other}/messages?from=oldest").text
    for test in (f'value.card.number = "{secret}"', f'value ~ "{secret}"', f'headers.Auth = "{secret}"'):
        found = console.get(f"/topics/{topic}/messages?from=oldest&filter={quote(test)}").text
        assert places(found) == [], test
        assert places(console.get(f"/topics/{other}/messages?from=oldest&filter={quote(test)}").text)
    refused = console.get(f"/topics/{topic}/produce?partition=0&offset=0")
    assert secret not in refused.text
    assert "are masked" in refused.text
    application.extensions["console"].close()


def test_filters_are_saved_by_name_in_the_browser(console, filled):
    page = f"/topics/{filled}/messages"
    given = console.get(f"{page}?filter={quote('partition = 1')}").text
    token = re.search(r'name="token" value="([^"]+)"', given)[1]
    form = {"token": token, "filter": "partition = 1", "title": "<b>only one", "from": "oldest"}
    headers = {"Origin": "http://localhost"}
    saved = console.post(f"/topics/{filled}/filters", data=form, headers=headers)
    assert (saved.status_code, "filter=partition" in saved.headers["Location"]) == (303, True)
    assert "HttpOnly" in saved.headers["Set-Cookie"] and "SameSite=Strict" in saved.headers["Set-Cookie"]
    shown = console.get(page).text
    assert "&lt;b&gt;only one" in shown and "<b>only" not in shown
    for change, words in (({"title": ""}, "needs a name"), ({"filter": "((", "title": "x"}, "is no filter")):
        refused = console.post(f"/topics/{filled}/filters", data=form | change, headers=headers)
        assert (refused.status_code, words in refused.text) == (400, True)
    assert console.post(f"/topics/{filled}/filters", data=form | {"token": "x"}, headers=headers).status_code == 403
    console.set_cookie("millstream-filters", "no base64 at all")
    assert console.get(page).status_code == 200
    console.post(f"/topics/{filled}/filters", data=form, headers=headers)
    gone = console.post(f"/topics/{filled}/filters", data=form | {"remove": "1"}, headers=headers)
    assert gone.status_code == 303
    assert "only one" not in console.get(page).text


def test_requests_of_other_sites_are_refused(console):
    assert console.get("/", headers={"Host": "evil.example"}).status_code == 421
    form = console.get("/").text
    token = re.search(r'name="token" value="([^"]+)"', form)[1]
    own = {"Origin": "http://localhost"}
    assert console.post("/theme", data={"token": token, "theme": "dark"}).status_code == 403
    stranger = {"Origin": "http://evil.example"}
    assert console.post("/theme", data={"token": token, "theme": "dark"}, headers=stranger).status_code == 403
    assert console.post("/theme", data={"token": "x", "theme": "dark"}, headers=own).status_code == 403
    assert console.post("/theme", data={"token": token, "theme": "dark"}, headers=own).status_code == 303
    assert '<html lang="en" data-theme="dark">' in console.get("/").text


def test_pages_come_back_with_the_broker(broker_factory):
    restarted = broker_factory(topics={"kept": 2})
    consumer = Consumer({**restarted.client, "group.id": "reader"})
    consumer.commit(offsets=[TopicPartition("kept", 0, 0)], asynchronous=False)
    consumer.close()
    application = create(Settings(restarted.bootstrap))
    client = application.test_client()
    paths = ("/groups", "/group?id=reader", "/brokers/0", "/topics/kept", "/topics/kept/messages")
    try:
        for path in paths:
            assert client.get(path).status_code == 200, path
        restarted.kill()
        restarted.start()
        for path in paths:
            assert client.get(path).status_code == 200, path
    finally:
        application.extensions["console"].close()


def test_a_cluster_that_does_not_answer_is_a_page(monkeypatch):
    monkeypatch.setattr(Access.__init__, "__kwdefaults__", {"timeout_s": 0.2})
    answer = create(Settings("127.0.0.1:9")).test_client().get("/topics")
    assert answer.status_code == 503
    assert "no broker answers" in answer.text


def test_what_is_not_there_is_a_page(console):
    for path in ("/nothing", "/topics/no-such-topic", "/group?id=nobody", "/brokers/77"):
        assert console.get(path).status_code == 404
    assert console.get("/transaction?id=nobody").status_code == 400


def test_a_small_batch_of_very_many_bytes_is_shown_in_parts(broker, console):
    topic = broker.new_topic()
    producer = Producer({**broker.client, "compression.type": "zstd", "batch.size": 40 << 20, "linger.ms": 500})
    for number in range(30):
        producer.produce(topic, b"%02d" % number + b"x" * 900_000)
    producer.flush()
    path, seen, steps = f"/topics/{topic}/messages?from=oldest&limit=500", [], 0
    while path is not None:
        page = console.get(path).text
        seen += places(page)
        steps += 1
        path = next_of(page)
    assert seen == [(0, offset) for offset in range(30)]
    assert steps >= 2


def test_long_responses_are_few_and_free_their_place(console, filled):
    slots = console.application.extensions["console.streams"].slots
    for _ in range(STREAMS_MAX):
        assert slots.acquire(blocking=False)
    assert console.get(f"/topics/{filled}/live").status_code == 503
    assert console.get(f"/topics/{filled}/export").status_code == 503
    for _ in range(STREAMS_MAX):
        slots.release()
    for _ in range(STREAMS_MAX + 1):
        assert len(console.get(f"/topics/{filled}/export").text.splitlines()) == 130
    for _ in range(STREAMS_MAX + 1):
        left = console.get(f"/topics/{filled}/live")
        assert left.status_code == 200
        left.close()


def test_partitions_without_a_leader_are_named_and_not_left_out_of_an_export(console, filled, monkeypatch):
    access = console.application.extensions["console"]._own.access
    whole = access.snapshot(fresh=True)
    topic = whole.topics[filled]
    partitions = [
        msgspec.structs.replace(one, leader_id=-1) if one.partition_index == 1 else one for one in topic.partitions
    ]
    topics = {**whole.topics, filled: msgspec.structs.replace(topic, partitions=partitions)}
    asked = []

    def snapshot_of(name):
        asked.append(name)
        return msgspec.structs.replace(whole, topics=topics)

    monkeypatch.setattr(access, "snapshot_of", snapshot_of)
    page = console.get(f"/topics/{filled}/messages")
    assert page.status_code == 200
    assert "Records of partition 1 are not shown: it has no leader now." in page.text
    assert asked == [filled]  # now, and not as of some seconds ago: a leader may have been elected since
    refused = console.get(f"/topics/{filled}/export")
    assert refused.status_code == 503
    assert "would lack partition 1" in refused.text
    assert console.get(f"/topics/{filled}/export?partition=0").status_code == 200


def test_a_cursor_behind_the_end_shows_nothing(console, filled):
    assert places(console.get(f"/topics/{filled}/messages?after=0:99999999").text) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "bad"], "--listen: 'bad' is not valid"),
        (["--listen", "0.0.0.0:0", "-X", "security.protocol=SSL"], "would act as this command"),
        (["--registry", "ftp://x"], "is no URL"),
        (["--login", "KERBEROS"], "is not one of"),
        (["--login", "OIDC"], "needs console.oidc.issuer.url and console.oidc.client.id"),
        (["--login", "OIDC", "--command-config", "console.oidc.issuer.url=http://h/"], "is not valid, expected https"),
        (["--login", "OIDC", "--command-config", "console.oidc.scope=profile"], "openid among them"),
        (["--login", "OIDC", "--command-config", "console.oidc.issuer=https://h"], "console.oidc.issuer: is not known"),
    ],
)
def test_a_console_that_cannot_be_is_refused_in_one_sentence(arguments, said, capsys, tmp_path):
    if "--command-config" in arguments:
        file = tmp_path / "console.properties"
        file.write_text(arguments[-1])
        arguments = [*arguments[:-1], str(file)]
    assert main(["console", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint
    assert complaint.count("\n") == 1
