"""Buffer pools of event partitions: each bounds what it is for, who waits is served in order or refused in time."""

import json
from types import SimpleNamespace

import pytest
from append_support import NOW, Acks, MemoryLog

from millstream.config.event_partition import PoolShape
from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.core.producer_state import ProducerBudget, ProducerState
from millstream.format.events.batch import build_event_batch
from millstream.iobuf import Arena, IoBuf
from millstream.model.error_code import ErrorCode
from millstream.partition.append.admission import Admission
from millstream.partition.append.batch import Batch
from millstream.partition.append.checks import settle
from millstream.partition.append.pooled import WAIT_US
from millstream.partition.events import home as events_home
from millstream.partition.events.feeds import Fed, FeedAsk
from millstream.partition.events.home import EventsHome
from millstream.partition.events.partition import EventsPartition
from millstream.partition.events.pools import POOLS, Pool, PoolMeters
from millstream.partition.meters import Meters
from millstream.partition.table import PartitionTable
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.telemetry.metrics import StatsSlab
from sim.engine.local_storage import LocalReactor


def pool(limit=100, **shape):
    stats = StatsSlab()
    return Pool(PoolShape(**shape), limit, PoolMeters(stats, POOLS[0])), stats


def read(stats, name, pool=POOLS[0]):
    kind = stats.gauge if name.endswith("bytes") else stats.counter
    return kind(f"event_pool_{name}", pool=pool).value


def test_a_lease_takes_the_smallest_free_buffer_that_holds_it():
    one, stats = pool(num_tiers=3, num_buffers=1, first_size=10, size_multiple=4.0)
    assert one.sizes == (10, 40, 160)
    leases = [one.take(9), one.take(9), one.take(9)]
    assert [lease.size_bytes for lease in leases] == [10, 40, 160]
    assert read(stats, "leased_bytes") == one.leased == 210
    assert not one.fits(1)
    leases[1].release()
    assert one.fits(40)
    assert not one.fits(41)
    leases[0].release()
    assert one.take(45).size_bytes == 50, "the free ones together"
    assert read(stats, "leases") == 4
    assert not read(stats, "oversized")


def test_a_lease_larger_than_the_pool_takes_all_of_it_when_it_is_idle():
    one, stats = pool(num_buffers=2, first_size=10)
    small = one.take(1)
    assert not one.fits(100)
    small.release()
    assert one.fits(100)
    assert one.take(100).size_bytes == 20
    assert not one.fits(1)
    assert read(stats, "oversized") == 1


def test_a_pool_without_buffers_leases_bytes_up_to_the_memory_of_its_side():
    one, stats = pool(limit=100, num_buffers=0, first_size=64)
    leases = [one.take(60), one.take(40)]
    assert not one.fits(1)
    assert one.room(50) == 0
    for lease in leases:
        lease.release()
    assert one.room(500) == 100
    assert one.take(500).size_bytes == 500
    assert read(stats, "oversized") == 1


def test_tiers_beyond_all_memory_are_sizes_all_the_same():
    one, _ = pool(num_tiers=64, num_buffers=1, first_size=1 << 40, size_multiple=1e300)
    assert one.sizes[0] == 1 << 40
    assert one.sizes[-1] == 1 << 62


SMALL = {"num_buffers": 1, "first_size": 4096}


def event_batch(metadata=b"{}", data=b""):
    return memoryview(b"".join(build_event_batch([metadata], [[data]], now_ms=NOW)))


class World:
    """One event partition of one shard; its log is durable when the test says so."""

    def __init__(self, **sides):
        self.reactor = LocalReactor(NOW)
        storage = SimpleNamespace(accepts_writes=True, stopping=False, reads=SimpleNamespace(events=None))
        self.admission = Admission(self.reactor, storage)
        self.stats = StatsSlab()
        self.log = MemoryLog()
        self.arena = Arena.create(0, 4 << 20)
        self.log.host = SimpleNamespace(arena=self.arena)
        self.partition = EventsPartition(
            "t",
            bytes(16),
            0,
            7,
            self.log,
            SoleVoterGroup(self.log, 4),
            self.config(**sides),
            ProducerState(60_000, ProducerBudget(10)),
            Meters(self.stats),
        )
        mailbox = SimpleNamespace(serve=lambda *_: None)
        shard = SimpleNamespace(mailbox=mailbox, reactor=self.reactor, stats=self.stats, id=0)
        self.home = EventsHome(shard, PartitionTable(), storage)
        self.acks = Acks()
        self.acks.results = {}
        self.slots = 0

    @staticmethod
    def config(**sides):
        configs = {"topic.kind": "events", "events.partition": json.dumps(sides)}
        return topic_config(configs, Settings(data_dir="/nowhere"))

    def push(self, data):
        slot, self.slots = self.slots, self.slots + 1
        self.acks.results[slot] = None

        def done(outcome, refusal):
            settle(self.partition, outcome, self.acks, slot, own_sync=False)

        self.admission.submit(Batch(self.partition, (data,), len(data)), done)

    def commit(self):
        self.log.sync()
        self.run()

    def run(self):
        while self.reactor.turn():
            pass

    def errors(self):
        return {slot: result and result.error_code for slot, result in self.acks.results.items()}

    def at_rest(self):
        return self.partition.pools.at_rest


@pytest.mark.parametrize(
    ("key", "large"),
    [("metadata_buffer_pool", {"metadata": b'"' + b"m" * 3000 + b'"'}), ("data_buffer_pool", {"data": b"d" * 3000})],
)
def test_a_push_that_finds_no_buffer_waits_for_a_commit_in_order(key, large):
    world = World(producers={key: SMALL})
    for _ in range(3):
        world.push(event_batch(**large))
    world.push(event_batch())
    assert len(world.log.batches) == 1
    assert not world.admission._retries, "other partitions of the shard do not wait"
    assert read(world.stats, "waits", f"producers_{key.split('_')[0]}") == 1
    for count in (2, 3, 4):
        world.commit()
        assert len(world.log.batches) == count
    world.commit()
    assert world.acks.acked_slots == [0, 1, 2, 3]
    assert world.at_rest()
    assert read(world.stats, "leased_bytes", "producers_data") == 0


def test_without_buffers_declared_pushes_do_not_wait():
    world = World()
    for _ in range(20):
        world.push(event_batch(data=b"d" * 3000))
    assert len(world.log.batches) == 20
    world.commit()
    assert world.at_rest()


def test_a_push_that_waits_too_long_is_refused_retriably():
    world = World(producers={"data_buffer_pool": SMALL})
    world.push(event_batch(data=b"d" * 3000))
    world.push(event_batch(data=b"d" * 3000))
    begun = world.reactor.now_us()
    while world.errors()[1] is None and world.reactor.sleep(begun + 2 * WAIT_US):
        world.run()
    assert world.errors()[1] == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert world.reactor.now_us() - begun <= WAIT_US + 10_000
    world.commit()
    assert world.acks.acked_slots == [1, 0]
    assert world.at_rest()


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda one: one.resign(), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (lambda one: one.close(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_partition_that_serves_no_more_refuses_its_row_and_gives_all_leases_back(end, error):
    world = World(producers={"data_buffer_pool": SMALL})
    for _ in range(3):
        world.push(event_batch(data=b"d" * 3000))
    end(world.partition)
    world.run()
    assert world.acks.failed_slots == [(0, error)]
    assert world.errors() == {0: 0, 1: error, 2: error}
    assert world.at_rest()


def test_a_larger_pool_lets_in_who_waits():
    world = World(producers={"data_buffer_pool": SMALL})
    for _ in range(3):
        world.push(event_batch(data=b"d" * 3000))
    world.partition.config = world.config(producers={"data_buffer_pool": {**SMALL, "num_buffers": 4}})
    world.partition.set_gate()
    world.run()
    assert len(world.log.batches) == 3
    world.commit()
    assert world.at_rest()


class Feeds:
    """Feeds of a partition with events of 1000 bytes of metadata; each answer is sent when the test says so."""

    def __init__(self, world, monkeypatch):
        self.world = world
        self.asked = []
        self.answers = []
        monkeypatch.setattr(events_home, "feed", self.read)
        world.push(event_batch())
        world.commit()

    def read(self, partition, reads, ask, done, meters):
        self.asked.append(ask)
        count = max(1, min(ask.events_max, ask.max_bytes // 1000))
        metadata = IoBuf()
        for _ in range(count):
            metadata.append(self.world.arena.allocate(1000), 0, 1000)
        fed = Fed(metadata_sizes=bytes(4 * count), descriptors=bytes(48 * count), descriptor_sizes=bytes(4 * count))
        done(fed, metadata)

    def feed(self, max_wait_ms=1000, stop=False):
        ask = FeedAsk(7, len(self.asked), -1, 0, 1 << 20, 1 << 20, max_wait_ms, stop)
        self.world.home.feed(self.world.partition, ask, lambda *answer: self.answers.append(answer))

    def sent(self):
        fed, metadata, lease = self.answers.pop(0)
        metadata.release()
        lease.release()
        self.world.run()
        return fed


@pytest.mark.parametrize(("key", "events"), [("metadata_buffer_pool", 4), ("desc_buffer_pool", 78)])
def test_a_feed_has_what_one_buffer_holds_and_the_next_waits_until_it_was_sent(monkeypatch, key, events):
    world = World(consumers={key: SMALL})
    feeds = Feeds(world, monkeypatch)
    feeds.feed()
    feeds.feed()
    assert len(feeds.answers) == len(feeds.asked) == 1
    assert read(world.stats, "waits", f"consumers_{key.split('_')[0]}") == 1
    assert len(feeds.sent().descriptor_sizes) == 4 * events
    assert len(feeds.asked) == 2
    feeds.sent()
    assert world.at_rest()
    assert not world.arena.live_fragments


def test_a_feed_that_finds_no_buffer_in_time_is_refused_retriably(monkeypatch):
    world = World(consumers={"metadata_buffer_pool": SMALL})
    feeds = Feeds(world, monkeypatch)
    feeds.feed()
    feeds.feed()
    feeds.feed(stop=True)
    (stopped, _, _) = feeds.answers.pop()
    assert stopped.error == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    world.reactor.sleep(world.reactor.now_us() + 2_000_000)
    world.run()
    (late, metadata, lease) = feeds.answers.pop()
    assert (late.error, metadata, lease) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, None, None)
    assert "consumers' pools" in late.message
    feeds.sent()
    assert world.at_rest()
    assert not world.partition.waiters.readers


def test_a_partition_that_serves_no_more_answers_feeds_that_wait_for_buffers(monkeypatch):
    world = World(consumers={"metadata_buffer_pool": SMALL})
    feeds = Feeds(world, monkeypatch)
    feeds.feed()
    feeds.feed()
    world.partition.resign()
    world.run()
    assert len(feeds.asked) == 2, "the read itself says why there is nothing"
    monkeypatch.undo()
    for _ in range(2):
        feeds.sent() if feeds.answers[0][2] else feeds.answers[0][1].release() or feeds.answers.pop(0)
    assert world.at_rest()
