"""Tiered topics when something fails: the store is away, the cache is damaged, two leaders archive."""

import os
import random
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from archive_fault_support import check_all_read, produce_until
from archive_kill_hook import STEPS
from confluent_kafka.admin import NewTopic, OffsetSpec
from tiered_stores import object_store
from tiering import (
    AT_ONCE,
    RECORDS,
    TIERED,
    InBackground,
    ask,
    consume,
    create,
    expected,
    leader,
    metric,
    offset_of,
    only_the_tail_is_local,
    produce,
    tier,
    value,
)

from millstream.cli.exposition import read_exposition
from millstream.testing import cluster
from millstream.testing.process import Broker
from millstream.tiers.hot_tier.slots import PAGE_BYTES, SLOT_BYTES
from waits import moment, until

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.ci
def test_a_store_that_is_away_costs_readers_time_and_nothing_else():
    with Broker(settings=AT_ONCE) as broker:
        create(broker, "away")
        produce(broker, "away", range(RECORDS))
        until(lambda: only_the_tail_is_local(broker), "local copies stayed")
        broker.stop()  # what the archive process keeps in memory is gone
        broker.start()
        store, hidden = broker.data_dir / "objects", broker.data_dir / "hidden"
        os.rename(store, hidden)
        store.write_text("no directory")
        produce(broker, "away", range(RECORDS, RECORDS + 60))
        with pytest.raises(AssertionError, match="only 0 records"):
            consume(broker, "away", patience_s=2)
        assert consume(broker, "away", start=RECORDS + 50) == expected(range(RECORDS + 50, RECORDS + 60))
        store.unlink()
        os.rename(hidden, store)
        assert consume(broker, "away") == expected(range(RECORDS + 60))
        assert "error" not in broker.log_tail().lower().replace("errors", "")


@pytest.mark.slow
@pytest.mark.ci
def test_a_broker_that_is_killed_while_it_archives_loses_nothing():
    chance = random.Random(11)
    with Broker(settings=AT_ONCE, shards=1) as broker:
        create(broker, "killed")
        end = 0
        for _ in range(8):
            produce(broker, "killed", range(end, end + 60))
            end += 60
            moment(chance.uniform(0, 0.6))  # before, during or after an upload, its commit, a checkpoint
            broker.kill()
            broker.start()
        assert consume(broker, "killed") == expected(range(end))
        until(lambda: only_the_tail_is_local(broker), "the archive stands still")
        assert consume(broker, "killed") == expected(range(end))

        def sound():
            found = tier(broker, "verify", code=None)
            return found["segments"] and not found["findings"]

        until(sound, "the store is not what the manifest says")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_a_broker_that_is_killed_at_any_step_of_upload_and_commit_loses_nothing(kind, tmp_path, monkeypatch):
    with object_store(kind, tmp_path, monkeypatch) as store:
        kill_at_each_step(tmp_path, store.url)


def kill_at_each_step(tmp_path, url):
    step, aside = tmp_path / "step", tmp_path / "aside"
    hook = {"internal.shard.hook": "archive_kill_hook:kill_at_step"}
    where = {"PYTHONPATH": str(Path(__file__).parent), "MILLSTREAM_KILL_AT": str(step)}
    with Broker(settings=AT_ONCE | hook | {"objects.url": url}, shards=1, env=where) as broker:
        create(broker, "killed")
        acknowledged = {}
        for number, name in enumerate(STEPS):
            aside.write_text(name)
            aside.replace(step)
            acknowledged |= produce_until(broker, "killed", 1000 * number, lambda: not step.exists())
            broker.kill()  # collects the process
            broker.start()
            check_all_read(consume(broker, "killed"), acknowledged)
        assert len(acknowledged) > 20, "the steps were reached without records"
        end = offset_of(broker, "killed", OffsetSpec.latest())
        produce(broker, "killed", range(9000, 9060))
        until(lambda: only_the_tail_is_local(broker), "the archive stands still")
        until(lambda: not tier(broker, "verify", code=None)["findings"], "the store is not what the manifest says")
        found = consume(broker, "killed")
        check_all_read(found, acknowledged)
        assert [one[2] for one in found[end:]] == [value(one) for one in range(9000, 9060)]


@pytest.fixture
def small_disk():
    """A file system of 12 MB that a test may fill."""
    if os.geteuid():
        pytest.skip("only root mounts a file system")
    with tempfile.TemporaryDirectory() as directory:
        mount = ["mount", "-t", "tmpfs", "-o", "size=12m,mode=0700", "tmpfs", directory]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("this machine mounts no file system")
        try:
            yield directory
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)


@contextmanager
def broker_with_a_cache(small_disk):
    """One whose every read of history asks the warm cache, and the harm that can be done to that."""
    settings = {
        "cache.type": "nvme",
        "cache.path": f"{small_disk}/cache",
        "cache.fill": "both",
        "cache.max.segment.age.ms": 10**13,
        "cache.io": "buffered",
        "evict.interval.ms": 100,
        "internal.shard.hook": "warm_cache_hook:ask_always",
    }
    here = {"PYTHONPATH": str(Path(__file__).parent)}
    path, other, chance = Path(small_disk, "cache", "shard-0"), Path(small_disk, "other"), random.Random(7)

    def corrupt():
        with path.open("r+b") as file:
            for slot in range(path.stat().st_size // SLOT_BYTES + 1):
                file.seek(slot * SLOT_BYTES + chance.randrange(2 * PAGE_BYTES))
                file.write(os.urandom(2000))

    def truncate():
        os.truncate(path, 100)

    def fill():
        with suppress(OSError), other.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))

    def make_room():
        other.unlink()

    with Broker(settings=AT_ONCE | settings, shards=1, env=here) as broker:
        yield broker, (corrupt, truncate, fill, make_room, corrupt, path.unlink)


def begin_with_a_full_cache(broker):
    """What is archived is in no other memory and in no local file: its readers ask the warm cache."""
    until(lambda: only_the_tail_is_local(broker), "local copies stayed")
    broker.stop()
    broker.start()
    assert consume(broker, "abused") == expected(range(RECORDS))
    until(lambda: metric(broker, "millstream_hot_tier_fills_total") > 5, "nothing is in the cache")


def is_full_again(broker):
    """Whether it has something after everything was read."""
    assert consume(broker, "abused") == expected(range(RECORDS))
    return metric(broker, "millstream_hot_tier_size_bytes") > 100_000


def check_that_it_was_asked(broker):
    found = read_exposition(f"{broker.http}/metrics", 10)
    assert found.value("millstream_archive_read_failures_total") == 0
    assert found.value("millstream_hot_tier_hits_total") > 10
    assert found.value("millstream_archive_blocks_total", source="store") > 10
    assert found.value("millstream_hot_tier_evictions_total", reason="fault") > 0, "no harm was noticed"


@pytest.mark.slow
@pytest.mark.ci
def test_nothing_that_happens_to_the_files_of_the_warm_cache_reaches_a_reader(small_disk):
    """Corrupt, truncate and delete them, and fill their disk: no fetch fails, and no byte is wrong."""
    with broker_with_a_cache(small_disk) as (broker, harms):
        create(broker, "abused")
        produce(broker, "abused", range(RECORDS))
        begin_with_a_full_cache(broker)
        for harm in harms:
            until(lambda: is_full_again(broker) or harm.__name__ == "make_room", "the cache is empty")  # noqa: B023
            hits = metric(broker, "millstream_hot_tier_hits_total")
            assert consume(broker, "abused") == expected(range(RECORDS))
            assert metric(broker, "millstream_hot_tier_hits_total") > hits or harm.__name__ == "make_room"
            harm()
            for _ in range(2):
                assert consume(broker, "abused") == expected(range(RECORDS)), harm
        check_that_it_was_asked(broker)
        produce(broker, "abused", range(RECORDS, RECORDS + 20))
        assert consume(broker, "abused") == expected(range(RECORDS + 20))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_harm_to_the_warm_cache_reaches_nobody_while_records_come_and_go(small_disk):
    """As above, with a producer and two readers of everything that never stop."""
    with broker_with_a_cache(small_disk) as (broker, harms):
        create(broker, "abused")
        produce(broker, "abused", range(RECORDS))
        begin_with_a_full_cache(broker)
        ending, end, passes = threading.Event(), [RECORDS], [0, 0]

        def add():
            while not ending.is_set():
                produce(broker, "abused", range(end[0], end[0] + 10))
                end[0] += 10
                ending.wait(0.3)

        def read(reader):
            while not ending.is_set():
                least = end[0]
                found = consume(broker, "abused")
                assert found == expected(range(len(found)))
                assert len(found) >= least, "records are missing"
                passes[reader] += 1

        def every_reader_has_passed():
            for one in going:
                one.check()
            return min(passes) >= 2  # one of them began after the harm

        going = [InBackground(add), InBackground(partial(read, 0)), InBackground(partial(read, 1))]
        try:
            for harm in harms + harms:
                if harm.__name__ in ("corrupt", "truncate"):
                    until(lambda: metric(broker, "millstream_hot_tier_size_bytes") > 0, "the cache is empty")
                with suppress(FileNotFoundError):  # the second round: the file has no name any more
                    harm()
                passes[:] = 0, 0
                until(every_reader_has_passed, f"a reader does not get on after {harm}")
        finally:
            ending.set()
        for one in going:
            one.join(240)
        check_that_it_was_asked(broker)
        assert consume(broker, "abused") == expected(range(end[0]))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_two_leaders_after_a_partition_leave_one_archive(kind, tmp_path, monkeypatch):
    with object_store(kind, tmp_path, monkeypatch) as store:
        # Brokers in networks of their own would not reach the S3 of this process.
        networks = "proxies" if kind == "s3" else True
        with cluster(3, settings={**AT_ONCE, "objects.url": store.url}, networks=networks) as three:
            archive_with_two_leaders(three, store.open())


def segments_in(store):
    return [info.key for info in store.list("topics/") if info.key.endswith(".segment")]


def archive_with_two_leaders(three, store):
    brokers = three.brokers
    settings = {**TIERED, "min.insync.replicas": "2"}
    ask(brokers[1], "create_topics", [NewTopic("copies", 1, 3, config=settings)], "copies")
    until(lambda: leader(brokers[1]) in brokers, "no broker leads")
    produce(brokers[1], "copies", range(RECORDS))
    until(lambda: segments_in(store), "nothing is archived")
    first = leader(brokers[1])
    rest = {node for node in brokers if node != first}
    other = brokers[min(rest)]
    three.partition({first}, rest)  # both sides still reach the store
    until(lambda: leader(other) in rest, "no broker leads on the other side")
    produce(other, "copies", range(RECORDS, RECORDS + 100))
    three.heal()

    def whole():
        found = tier(other, "verify")
        return found["segments"] and not found["findings"]

    assert consume(other, "copies") == expected(range(RECORDS + 100))
    until(whole, "the store is damaged")
    three.kill(leader(other))
    alive = next(broker for broker in brokers.values() if broker.running)
    until(lambda: brokers.get(leader(alive)) is not None and brokers[leader(alive)].running, "no broker leads")
    assert consume(alive, "copies") == expected(range(RECORDS + 100))
