"""Objects of deleted topics are removed however often it fails, also by the next start, but never of a topic that was
recovered meanwhile.
"""

import random
import uuid

import pytest

from millstream.errors import Unavailable
from millstream.format.manifest import ArchiveId
from millstream.tiers.purging import Purges, forget_topic, mark, marked, unmark
from sim.engine.disk import SimDisk

TOPIC = uuid.UUID(int=7)
OWNER = ArchiveId(TOPIC, 3)
NAME = f"{TOPIC.hex}-3"
FOLDER = f"topics/{TOPIC.hex}/"


class Timers:
    def __init__(self):
        self.waits_us, self._calls = [], []

    def call_later(self, wait_us, call):
        self.waits_us.append(wait_us)
        self._calls.append(call)

    def ring(self):
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class Link:
    def __init__(self):
        self.asked = []

    def remove_keys(self, keys, owner, done):
        self.asked.append((keys, owner))
        self._done = done

    def answer(self, error=None):
        self._done(error)


@pytest.fixture
def disk():
    return SimDisk(random.Random(0))


@pytest.fixture
def timers():
    return Timers()


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def purges(disk, timers, link):
    return Purges(timers, disk, "/data", link)


def test_a_removal_is_repeated_until_the_store_has_nothing_left_and_its_mark_goes_then(purges, disk, timers, link):
    purges.mark(OWNER)
    purges.begin(OWNER)
    for _ in range(8):
        assert marked(disk, "/data") == [NAME]
        link.answer(Unavailable("the store is away"))
        timers.ring()
    assert link.asked == [((f"{FOLDER}topic", f"{FOLDER}3/"), OWNER)] * 9, "the description goes first"
    assert timers.waits_us == sorted(timers.waits_us)
    assert timers.waits_us[-1] == 60_000_000
    link.answer()
    assert marked(disk, "/data") == []


def test_the_next_start_goes_on_with_partitions_and_with_whole_topics(purges, disk, timers, link):
    purges.mark(OWNER)
    other = uuid.UUID(int=8)
    mark(disk, "/data", other.hex)
    disk.open("/data/purges/notes.txt", create=True).close()
    after = Link()
    Purges(timers, disk, "/data", after).resume()
    assert after.asked == [
        ((f"{FOLDER}topic", f"{FOLDER}3/"), OWNER),
        ((f"topics/{other.hex}/topic", f"topics/{other.hex}/"), ArchiveId(other, 0)),
    ]
    after.answer()
    assert marked(disk, "/data") == [NAME]


def test_nothing_of_a_topic_is_removed_that_is_recovered_meanwhile(purges, disk, timers, link):
    purges.mark(OWNER)
    purges.begin(OWNER)
    link.answer(Unavailable("the store is away"))
    mark(disk, "/data", TOPIC.hex)
    forget_topic(disk, "/data", TOPIC)
    assert marked(disk, "/data") == []
    timers.ring()
    assert len(link.asked) == 1
    disk.crash(torn=False)
    assert marked(disk, "/data") == [], "the recovery is durable"
    forget_topic(disk, "/data", TOPIC)


def test_a_full_disk_leaves_no_mark_and_the_removal_goes_on_all_the_same(
    purges, disk, timers, link, monkeypatch, capfd
):
    def full(path, *, create=False):
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(disk, "open", full)
    purges.mark(OWNER)
    assert f"/data/purges/{NAME}: No space left on device" in capfd.readouterr().err
    purges.begin(OWNER)
    link.answer(Unavailable("the store is away"))
    timers.ring()
    assert len(link.asked) == 2
    link.answer()


def test_a_stopped_shard_begins_nothing_more(purges, timers, link):
    purges.mark(OWNER)
    purges.begin(OWNER)
    purges.stop()
    link.answer(Unavailable("the broker stops"))
    assert timers.waits_us == []
    purges.resume()
    assert len(link.asked) == 1


def test_a_mark_is_taken_away_once_and_the_directory_may_be_missing(disk):
    assert marked(disk, "/data") == []
    mark(disk, "/data", NAME)
    mark(disk, "/data", NAME)
    assert marked(disk, "/data") == [NAME]
    unmark(disk, "/data", NAME)
    unmark(disk, "/data", NAME)
    assert marked(disk, "/data") == []


def test_a_follower_sees_a_minute_later_that_the_objects_of_the_whole_topic_went(purges, disk, timers, link):
    purges.follow(OWNER)
    purges.follow(ArchiveId(TOPIC, 4))
    assert marked(disk, "/data") == [TOPIC.hex]
    assert (link.asked, timers.waits_us) == ([], [60_000_000])
    timers.ring()
    assert link.asked == [((f"{FOLDER}topic", FOLDER), OWNER)]
    link.answer(Unavailable("the store is away"))
    timers.ring()
    link.answer()
    assert len(link.asked) == 2
    assert marked(disk, "/data") == []


def test_a_follower_removes_nothing_of_a_topic_that_is_recovered_meanwhile(purges, disk, timers, link):
    purges.follow(OWNER)
    forget_topic(disk, "/data", TOPIC)
    timers.ring()
    assert link.asked == []


def test_a_follower_that_stops_meanwhile_goes_on_at_its_next_start(purges, disk, timers, link):
    purges.follow(OWNER)
    purges.stop()
    timers.ring()
    assert link.asked == []
    Purges(timers, disk, "/data", link).resume()
    assert link.asked == [((f"{FOLDER}topic", FOLDER), ArchiveId(TOPIC, 0))]
