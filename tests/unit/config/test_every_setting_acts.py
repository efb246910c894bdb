"""Every declared setting has an effect, or says in words that it has none.

A setting acts if its value is read outside the room of settings, or is the default of a topic or group property that
acts. ``WITHIN`` and ``TAKEN`` are the exceptions, each with its sentence; an entry that is no longer one fails.
"""

import ast
import json
from pathlib import Path

import pytest

import millstream
from millstream.config.client_metrics import CLIENT_METRICS
from millstream.config.group_properties import GROUP_PROPERTIES, group_setting
from millstream.config.settings import NODE_PROPERTIES
from millstream.config.topic_properties import TOPIC_PROPERTIES, remarks_on, synonyms_of

ROOT = Path(millstream.__file__).parent

WITHIN = {
    "listener.security.protocol.map": "listeners with another protocol than PLAINTEXT are refused",
    "group.consumer.min.session.timeout.ms": "a bound on a property of groups, and on its default",
    "group.consumer.max.session.timeout.ms": "a bound on a property of groups, and on its default",
    "group.consumer.min.heartbeat.interval.ms": "a bound on a property of groups, and on its default",
    "group.consumer.max.heartbeat.interval.ms": "a bound on a property of groups, and on its default",
    "group.consumer.min.assignment.interval.ms": "a bound on a property of groups, and on its default",
    "group.consumer.max.assignment.interval.ms": "a bound on a property of groups, and on its default",
    "segment.index.bytes": "bounds segment_bytes, as many entries as the index may have",
    "internal.segment.bytes": "takes the place of segment_bytes",
    "events.partition": "read as event_partition",
}
"""Settings that act within the room of settings: they bound or make other values."""

TAKEN = {
    "remote.storage.enable": "one value is taken, the other is refused with the reason",
    "preallocate": "one value is taken, the other is refused with the reason",
    "unclean.leader.election.enable": "one value is taken, the other is refused with the reason",
}
"""Topic properties of Apache Kafka that are taken, because tools set them; the reference page says of each why."""

BY_PATTERN = {
    f"compression.{codec}.level": "compression_{config.compression_type}_level" for codec in ("gzip", "lz4", "zstd")
}


def sources(within):
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0]
        if room != "testing" and (room == "config") == within:
            yield path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def read_outside():
    """Names of attributes that some module outside the room of settings reads."""
    found = set()
    for text in sources(False):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
    return found


def acts(declaration, read_outside):
    name = declaration.name
    if declaration.field in read_outside or not declaration.effect or name in WITHIN or name in TAKEN:
        return True
    if name in BY_PATTERN:
        return any(BY_PATTERN[name] in text for text in sources(False))
    followers = [
        TOPIC_PROPERTIES[topic]
        for topic in TOPIC_PROPERTIES
        if any(one.declaration is declaration for one in synonyms_of(topic))
    ]
    followers += [GROUP_PROPERTIES[group] for group in GROUP_PROPERTIES if group_setting(group) is declaration]
    return any(one.effect and one is not declaration and acts(one, read_outside) for one in followers)


@pytest.mark.parametrize("table", [NODE_PROPERTIES, TOPIC_PROPERTIES, GROUP_PROPERTIES, CLIENT_METRICS])
def test_every_declared_property_acts_or_says_that_it_does_not(table, read_outside):
    idle = sorted(name for name, declaration in table.items() if not acts(declaration, read_outside))
    assert not idle, "read outside the room of settings, declared with effect=False, or listed here with a sentence"


def test_the_exceptions_are_exceptions(read_outside):
    every = NODE_PROPERTIES | TOPIC_PROPERTIES
    assert set(WITHIN) | set(TAKEN) <= set(every)
    needless = [name for name in TAKEN if every[name].field in read_outside or not every[name].effect]
    assert not needless, "it acts now, or says itself that it does not"
    text = "\n".join(sources(True))
    unread = [name for name in WITHIN if text.count(every[name].field) < 2 and name != "events.partition"]
    assert not unread


def test_a_setting_without_effect_says_why_in_its_text():
    silent = [
        name
        for table in (NODE_PROPERTIES, TOPIC_PROPERTIES)
        for name, declaration in table.items()
        if not declaration.effect and not declaration.doc.startswith("No effect: ")
    ]
    assert not silent


def test_a_setting_that_nothing_reads_is_found(read_outside):
    declaration = NODE_PROPERTIES["max.connections"]
    assert acts(declaration, read_outside)
    assert not acts(declaration, read_outside - {declaration.field})


def test_keys_of_event_partitions_without_effect_are_said_when_they_are_set():
    pools = {"producers": {"data_buffer_pool": {"num_tiers": 2}}, "max_chunk_size": 1}
    (said,) = remarks_on({"events.partition": json.dumps(pools)})
    assert said.startswith("events.partition: producers has no effect: ")
    assert remarks_on({"events.partition": '{"max_chunk_size": 1}'}) == []
    assert remarks_on({"events.partition": None}) == []
