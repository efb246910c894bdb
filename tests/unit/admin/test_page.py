"""The page for people: what it says, and that names from outside cannot become markup."""

import msgspec
import pytest

from millstream.admin.overview import Facts, GroupView, Overview, TopicView
from millstream.admin.page import page, size, span

FACTS = Facts("1.2.3", 7, "c-id", "127.0.0.1:9092", 93_784.0, True)


def shown(overview):
    return page(FACTS, overview).decode()


def test_an_empty_broker_says_how_to_begin():
    text = shown(Overview([], 0, [], 0))
    assert "Millstream 1.2.3" in text
    assert "1 d 2 h" in text
    assert "millstream topic create NAME" in text
    assert "No consumer group" in text


def test_topics_and_groups_are_rows_and_what_is_left_out_is_counted():
    topic = TopicView("orders", 3, 1234, 5 << 20, 2000, 6 << 20, 0)
    group = GroupView("billing", "Stable", 2, {"orders": 40, "paid": 0})
    text = shown(Overview([topic], 5, [group], 1))
    assert "<td>orders</td><td>3</td><td>1,234</td><td>5.0 MiB</td><td>2,000</td><td>6.0 MiB</td><td>0 B</td>" in text
    assert "<td>billing</td><td>Stable</td><td>2</td><td>40</td><td>orders: 40</td>" in text
    assert "4 more are not shown" in text


def test_tables_of_topics_are_rows_and_one_that_nobody_writes_says_so():
    table = {"topic": "orders", "sink": "delta:<o>", "state": "running", "rows": 1200, "rejected": 1, "lag": 3}
    text = page(FACTS, Overview([], 0, [], 0), [{**table, "served": True}, {**table, "served": False}]).decode()
    row = "<tr><td>orders</td><td>delta:&lt;o&gt;</td><td>1,200</td><td>1</td><td>3</td>"
    assert f"{row}<td>running</td>" in text and f"{row}<td>no &#x27;pipeline serve&#x27; runs it</td>" in text
    failed = {**table, "state": "failed", "reason": "made again", "served": True, "lag": None}
    assert "<td>–</td><td>failed: made again</td>" in page(FACTS, Overview([], 0, [], 0), [failed]).decode()
    assert "Tables of topics" not in shown(Overview([], 0, [], 0))


def test_the_name_of_a_group_cannot_become_markup():
    name = "<script>alert(1)</script>"
    text = shown(Overview([], 0, [GroupView(name, "Empty", 0, {name: 1})], 1))
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;: 1" in text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 40, "1.0 TiB"), (1 << 62, "4096.0 PiB")]
)
def test_sizes(number, text):
    assert size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (61, "1 min 1 s"), (3600, "1 h"), (90_061, "1 d 1 h"), (59.9, "59 s")]
)
def test_spans(seconds, text):
    assert span(seconds) == text


def test_a_full_disk_is_the_first_thing_that_is_said():
    full = page(msgspec.structs.replace(FACTS, accepts_writes=False), Overview([], 0, [], 0)).decode()
    assert "The disk is full: producers are refused" in full
    assert "The disk is full" not in page(FACTS, Overview([], 0, [], 0)).decode()
