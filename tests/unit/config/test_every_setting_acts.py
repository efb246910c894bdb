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
from millstream.config.event_partition import read_configuration
from millstream.config.group_properties import GROUP_PROPERTIES, group_setting
from millstream.config.node_properties import NODE_PROPERTIES
from millstream.config.table_properties import of_tables
from millstream.config.topic_properties import TOPIC_PROPERTIES, remarks_on, synonyms_of
from millstream.partition.events.pools import EventPools, pool_meters
from millstream.telemetry.metrics import StatsSlab

ROOT = Path(millstream.__file__).parent

WITHIN = {
    **{
        f"group.share.{bound}.{what}": "a bound on a property of groups, and on its default"
        for bound in ("min", "max")
        for what in (
            "session.timeout.ms",
            "heartbeat.interval.ms",
            "assignment.interval.ms",
            "record.lock.duration.ms",
            "delivery.count.limit",
            "partition.max.record.locks",
        )
    },
    **{
        f"group.streams.{what}": "a bound on a property of groups, and on its default"
        for what in (
            "min.session.timeout.ms",
            "max.session.timeout.ms",
            "min.heartbeat.interval.ms",
            "max.heartbeat.interval.ms",
            "min.assignment.interval.ms",
            "max.assignment.interval.ms",
            "max.standby.replicas",
        )
    },
    "group.consumer.min.session.timeout.ms": "a bound on a property of groups, and on its default",
    "group.consumer.max.session.timeout.ms": "a bound on a property of groups, and on its default",
    "group.consumer.min.heartbeat.interval.ms": "a bound on a property of groups, and on its default",
    "group.consumer.max.heartbeat.interval.ms": "a bound on a property of groups, and on its default",
    "group.consumer.min.assignment.interval.ms": "a bound on a property of groups, and on its default",
    "group.consumer.max.assignment.interval.ms": "a bound on a property of groups, and on its default",
    "insecure.listeners": "a start with addresses that are exposed is refused without it",
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
    if of_tables(name):  # read by a client, which knows its name
        return any(f'values.get("{name}")' in text for text in sources(False))
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


POOL = {"num_tiers": 2, "num_buffers": 2, "first_size": 100, "size_multiple": 2.0}


def leased_until_full(side, pool, keys):
    """Sizes of the buffers that leases of a byte get, until there is none for the next."""
    shapes = read_configuration({side: {pool: keys}}).pools
    pools = EventPools((10**6, 10**6), shapes, pool_meters(StatsSlab()))
    pair = pools.producers if side == "producers" else pools.consumers
    one = pair.pools[pool != "metadata_buffer_pool"]
    leased = []
    while one.room(1):
        leased.append(one.take(1).size_bytes)
    return leased


@pytest.mark.parametrize(
    ("side", "pool"),
    [
        ("producers", "metadata_buffer_pool"),
        ("producers", "data_buffer_pool"),
        ("consumers", "metadata_buffer_pool"),
        ("consumers", "desc_buffer_pool"),
    ],
)
@pytest.mark.parametrize(
    ("key", "value", "leased"),
    [
        ("num_tiers", 1, [100, 100]),
        ("num_buffers", 1, [100, 200]),
        ("first_size", 50, [50, 50, 100, 100]),
        ("size_multiple", 3.0, [100, 100, 300, 300]),
    ],
)
def test_every_key_of_a_buffer_pool_acts(side, pool, key, value, leased):
    assert leased_until_full(side, pool, POOL) == [100, 100, 200, 200]
    assert leased_until_full(side, pool, POOL | {key: value}) == leased


def test_every_key_of_event_partitions_is_taken_without_a_remark():
    pools = {"producers": {"data_buffer_pool": {"num_tiers": 2}}, "max_chunk_size": 1}
    assert remarks_on({"events.partition": json.dumps(pools)}) == []
