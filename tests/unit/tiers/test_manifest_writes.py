"""Derived objects are written on the condition that nobody else has written them meanwhile."""

import pytest
from numbered_segments import OWNER, numbered

from millstream.errors import Unavailable
from millstream.format.archive import TopicDescription, decode_topic, encode_topic, manifest_key, topic_key
from millstream.format.manifest import encode_manifest
from millstream.objects.errors import Unsupported
from millstream.storage.disk import SystemDisk
from millstream.tiers import Archive
from millstream.tiers.archiver import is_ahead
from millstream.tiers.describing import describe
from millstream.tiers.messages import Examine, Examined, Failed, Replace, Written
from millstream.tiers.process import ArchiveWorker
from sim.engine.objects import MemoryStore

KEY = manifest_key(OWNER)


def worker_of(store):
    return ArchiveWorker(store, store, SystemDisk(), memoryview(bytearray(16)), 1e12)


def test_a_write_whose_answer_was_lost_takes_no_effect_after_a_newer_one():
    store = MemoryStore()
    worker = worker_of(store)
    assert worker.carry_out(Examine(1, KEY)) == Examined(1, "", b"")
    first = worker.carry_out(Replace(2, KEY, b"first", ""))
    assert isinstance(first, Written)
    late = Replace(3, KEY, b"late", first.version)  # on its way for long
    seen = worker.carry_out(Examine(4, KEY))
    assert (seen.data, seen.version) == (b"first", first.version)
    assert isinstance(worker.carry_out(Replace(5, KEY, b"newer", seen.version)), Written)
    assert isinstance(worker.carry_out(late), Failed)
    assert isinstance(worker.carry_out(Replace(6, KEY, b"late", "")), Failed)
    assert worker.carry_out(Examine(7, KEY)).data == b"newer"


class WithoutConditions(MemoryStore):
    def put(self, key, parts, expect=None):
        if expect is not None:
            raise Unsupported("no conditional writes here")
        return super().put(key, parts)


def test_a_store_without_conditional_writes_is_written_as_it_is():
    worker = worker_of(WithoutConditions())
    written = worker.carry_out(Replace(1, KEY, b"data", ""))
    assert isinstance(worker.carry_out(Replace(2, KEY, b"more", written.version)), Written)
    assert worker.carry_out(Examine(3, KEY)).data == b"more"


@pytest.mark.parametrize(
    ("term", "ends", "ahead"),
    [
        (5, (3, 3), False),
        (5, (4, 3), True),  # written by the leader after this one, which has not heard of it
        (4, (4, 3), True),
        (6, (4, 3), False),  # this one leads in a later term: the cluster has lost what is there
        (5, (2, 3), False),
    ],
)
def test_a_leader_that_knows_less_than_the_manifest_leaves_it(term, ends, ahead):
    segments = numbered(4)
    stored, own = Archive(0), Archive(0)
    for archive, end in zip((stored, own), ends, strict=True):
        for one in segments[:end]:
            archive.append(one)
    data = encode_manifest(stored.manifest(OWNER, ((5, 0),)))
    assert is_ahead(data, own, term) is ahead


def test_a_manifest_that_is_missing_or_damaged_is_written():
    own = Archive(0)
    data = encode_manifest(own.manifest(OWNER, ((5, 0),)))
    assert not is_ahead(b"", own, 1)
    assert not is_ahead(data[:-1] + b"x", own, 1)


class Link:
    """The archive process, which answers at once."""

    def __init__(self, store):
        self.worker = worker_of(store)
        self.written = 0

    def examine(self, key, done):
        done(self.worker.carry_out(Examine(1, key)))

    def replace(self, key, data, expected, done):
        self.written += 1
        reply = self.worker.carry_out(Replace(1, key, data, expected))
        done(reply.version if isinstance(reply, Written) else Unavailable(reply.message))


def topic(partitions, **configs):
    return TopicDescription("t", OWNER.topic_id.hex, partitions, configs, "", 1)


def described(store, link, wanted):
    answers = []
    describe(link, OWNER, wanted, answers.append)
    (answer,) = answers
    return answer, decode_topic(store.get(topic_key(OWNER), 0, store.head(topic_key(OWNER)).size_bytes))


def test_a_topic_is_described_once_and_by_who_knows_most_of_it():
    store = MemoryStore()
    link = Link(store)
    assert described(store, link, topic(2)) == (None, topic(2))
    assert described(store, link, topic(2)) == (None, topic(2))
    assert link.written == 1
    assert described(store, link, topic(3)) == (None, topic(3))
    assert described(store, link, topic(2)) == (None, topic(3)), "a broker that has not heard of the third partition"
    assert described(store, link, topic(3, a="b")) == (None, topic(3, a="b"))


def test_a_damaged_description_is_replaced():
    store = MemoryStore()
    store.put(topic_key(OWNER), [b"{"])
    assert described(store, Link(store), topic(2)) == (None, topic(2))


def test_a_description_that_another_has_written_meanwhile_is_looked_at_again():
    store = MemoryStore()
    link = Link(store)
    examine = link.examine

    def late(key, done):
        found = link.worker.carry_out(Examine(1, key))
        store.put(topic_key(OWNER), [encode_topic(topic(5))])
        done(found)

    link.examine = late
    answer, found = described(store, link, topic(2))
    assert isinstance(answer, Unavailable) and found == topic(5)
    link.examine = examine
    assert described(store, link, topic(2)) == (None, topic(5))
