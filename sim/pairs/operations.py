"""The operations of pairs: what may happen to a topic, each as a straight line of verbs.

An operation may be refused; `REFUSALS` lists every sentence with which one is. Any other refusal is a finding.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from millstream.coordinator.transaction_records import encode_transaction
from millstream.core.controller.topic_names import GROUP_METADATA, TRANSACTION_STATE
from millstream.core.txn.image import EXHAUSTED, Image
from millstream.partition.append.checks import append_trusted
from millstream.tiers.inspection import describe_topics
from millstream.wire.records import build_batch
from sim.engine.objects import Faults
from sim.engine.timeline import SECOND
from sim.pairs.cuts import ONE_ALONE
from sim.pairs.faults import FAULTS
from sim.pairs.kinds import KINDS, TOPIC
from sim.pairs.resting import rest
from sim.pairs.several import NO_MAJORITY
from sim.pairs.world import DAY_MS, MINUTE, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.pairs.world import Producing, World

YEAR_MS: Final = 365 * DAY_MS
_FENCED: Final = ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_TXN_STATE", "INVALID_PRODUCER_ID_MAPPING")
"""Errors that a producer may get whose transaction was aborted without it."""


def fill(world: World, batches: int = 6, **record: int | bytes | None) -> None:
    """Write batches of a few records: about two segments. Where the topic of the kind is the broker's own, groups and
    transactions write to that.
    """
    for _ in range(batches):
        world.produce([world.record(**record) for _ in range(world.chance.randint(1, 3))])  # pyright: ignore[reportArgumentType]
        if world.kind.name == GROUP_METADATA:
            _commit_offset(world)
    if world.kind.name == TRANSACTION_STATE:
        _commit(world)


def _produce_with_one_disk(world: World) -> None:
    for _ in range(4):
        world.produce([world.record()], acks=1)


def _produce_idempotent(world: World) -> None:
    who = world.idempotent()
    for sequence in range(4):
        record, mine = world.record(once=True), who._replace(sequence=sequence)
        offset = world.produce([record], mine)
        if world.chance.random() < 0.5:
            again = world.produce([record], mine)
            assert again == offset, f"a batch that is sent again has offset {again}, not {offset}"


def _transaction(world: World, who: Producing, count: int = 3) -> list[bytes]:
    """Write what a transaction has; its values."""
    truth, values = world.truth_of(), list[bytes]()
    if not who.adds:
        world.add(who)
    for sequence in range(count):
        record = world.record(once=True)
        truth.open.add(record.value)
        values.append(record.value)
        try:
            world.produce([record], who._replace(sequence=sequence))
        except Refused:
            truth.open.discard(record.value)
            with suppress(Refused):
                world.end(who, commits=False)
            raise
    return values


def _end(world: World, who: Producing, values: list[bytes], *, commits: bool) -> None:
    world.end(who, commits=commits)
    truth = world.truth_of()
    truth.open.difference_update(values)
    if not commits:
        truth.aborted.update(values)


def _commit(world: World) -> None:
    who = world.begin("commits")
    _end(world, who, _transaction(world, who), commits=True)


def _abort(world: World) -> None:
    who = world.begin("aborts")
    values = _transaction(world, who)
    world.produce([world.record()])
    _end(world, who, values, commits=False)


def _empty_transaction(world: World) -> None:
    who = world.begin("empty")
    _end(world, who, [], commits=world.chance.random() < 0.5)


def _time_out(world: World) -> None:
    _overdue(world, world.begin("times out", 2_000))


def _overdue(world: World, who: Producing) -> None:
    """A transaction times out; its producer may end it all the same, and continue as it is told."""
    values = _transaction(world, who, 1)
    world.wait(30 * SECOND)
    world.truth_of().open.difference_update(values)
    world.truth_of().aborted.update(values)
    if world.chance.random() < 0.5:
        return
    try:
        who = world.end(who, commits=False)
        values = _transaction(world, who, 1)
        _end(world, who, values, commits=True)
    except Refused as refused:
        if str(refused) not in _FENCED:
            raise


def _leave_open(world: World) -> None:
    """It times out while the next operation runs, or later."""
    _transaction(world, world.begin("stays open", 40_000))


def _exhaust_epochs(world: World) -> None:
    """A transactional id that has used nearly all its epochs, as many years of use leave it."""
    name, found = "old", list[int]()
    world.next_producer_id(found.append)
    world.until(lambda: bool(found), "there is no producer id")
    partition = world.serving(TRANSACTION_STATE)
    image = Image(found[0], EXHAUSTED - world.chance.randrange(3), 2_000, client_version=2, update_ms=world.wall_ms())
    key, value = encode_transaction(name, image)
    appended = append_trusted(partition, build_batch([(key, value, (), world.wall_ms())]))
    assert isinstance(appended, tuple), appended
    world.until(lambda: partition.high_watermark >= appended[1], "the coordinator's record is not committed")
    world.stop()
    world.start()
    for _ in range(3):
        if world.chance.random() < 0.5:
            who = world.begin(name, 2_000)
            values = _transaction(world, who, 1)
            _end(world, who, values, commits=world.chance.random() < 0.5)
        else:
            _overdue(world, world.begin(name, 2_000))


def _without_time(world: World) -> None:
    fill(world, timestamp=-1)


def _time_zero(world: World) -> None:
    fill(world, timestamp=0)


def _future(world: World) -> None:
    world.produce([world.record(timestamp=world.wall_ms() + YEAR_MS)])
    fill(world, 3)


def _past(world: World) -> None:
    fill(world, 3, timestamp=world.wall_ms() - YEAR_MS)


def _null_keys(world: World) -> None:
    fill(world, 3, key=None)


def _huge_keys(world: World) -> None:
    world.produce([world.record(key=b"k" * 1_500)])
    world.produce([world.record(key=b"k" * 1_500)])


def _delete_some(world: World) -> None:
    end = world.latest()
    world.delete_records(world.chance.randint(0, end))


def _delete_all(world: World) -> None:
    world.delete_records(-1)


def _retain_by_time(world: World) -> None:
    world.alter({"retention.ms": "60000"})
    world.pause(2 * MINUTE)


def _retain_by_size(world: World) -> None:
    world.alter({"retention.bytes": "4000"})
    world.pause(MINUTE)


def _roll(world: World) -> None:
    world.alter({"segment.ms": "1000"})
    world.pause(10 * SECOND)


def _compact(world: World) -> None:
    world.pause(2 * MINUTE)


def _checkpoint(world: World) -> None:
    brokers, done = world.lives(), list[int]()
    for one in brokers:
        one.shard.storage.checkpoint(lambda: done.append(1))
    world.until(lambda: len(done) == len(brokers), "a checkpoint does not end")


def _altered(**changes: str | None) -> Callable[[World], None]:
    def alter(world: World) -> None:
        world.alter({name.replace("_", "."): value for name, value in changes.items()})
        fill(world, 3)

    return alter


def _as_created(world: World) -> None:
    world.alter(dict(world.kind.configs), replace=True)


def _add_partition(world: World) -> None:
    world.add_partition()
    index = len(world.controller.topics[TOPIC].partitions) - 1
    world.produce([world.record()], index=index)


def _create_again(world: World) -> None:
    kind = world.kind
    if kind.name == TRANSACTION_STATE:
        world.wait(3 * MINUTE)  # no coordinator ends a transaction that only this topic knew
    world.send()
    world.delete()
    world.wait(world.chance.choice((0, SECOND, MINUTE)))
    world.create(kind.name, kind.configs)


def _commit_offset(world: World) -> None:
    world.commit_offset(world.chance.randint(0, world.latest()))


def _leave_reads(world: World) -> None:
    """Most reads are from files or the store: the log caches have lost what is written."""
    _checkpoint(world)
    if world.chance.random() < 0.8:
        world.forget_cached()
    world.begin_reads(world.chance.randint(1, 4))


def _share(world: World) -> None:
    """Members of a share group take records. What they hold and do not give back is released when they leave."""
    world.sharing.take(world.chance.randrange(len(world.controller.topics[TOPIC].partitions)))


def _stop_and_start(world: World) -> None:
    world.send()
    world.stop()
    world.start()


def _kill_and_start(world: World) -> None:
    world.send()
    world.kill(torn=world.chance.random() < 0.5)
    world.start()


def _clock(by_ms: int) -> Callable[[World], None]:
    def move(world: World) -> None:
        world.set_wall_clock(by_ms)
        world.pause(30 * SECOND)

    return move


def _store_away(world: World) -> None:
    world.set_store(Faults(error=1.0))
    try:
        fill(world, 3)
    finally:
        world.pause(30 * SECOND)


def _store_slow(world: World) -> None:
    world.slow_us = 10 * SECOND


def _store_refuses(world: World) -> None:
    world.set_store(Faults(error=0.3, throttled=0.3, lost_answer=0.3))


def _disk_full(world: World) -> None:
    disk = world.chance.choice(world.disks())
    disk.capacity_bytes = sum(size for _, size in disk.files()) + world.chance.randrange(4_000)
    world.expected.append("disk full: producers are refused")
    try:
        fill(world, 4)
    except Refused as refused:
        if str(refused) not in ("KAFKA_STORAGE_ERROR", "NOT_ENOUGH_REPLICAS"):
            raise
    finally:
        disk.capacity_bytes = None
    world.pause(MINUTE)


def _lose_disk(world: World) -> list[int]:
    """The disk is lost, after all is archived unless the store has what was acknowledged; up to where the store has
    each partition.
    """
    if TOPIC not in [one.name for one in describe_topics(world.objects)]:
        raise Refused("the store has nothing of the topic")
    in_store = world.settings.shared_wal == "object"
    if in_store:
        world.wait(3 * MINUTE)  # no coordinator ends a transaction of a lost cluster
    else:
        rest(world)
    partitions = [world.serving(TOPIC, index) for index in range(len(world.controller.topics[TOPIC].partitions))]
    ends = [
        one.high_watermark if in_store else 0 if one.archive is None else int(one.archive.archive.end_offset)
        for one in partitions
    ]
    world.hear()
    world.kill(torn=True)
    world.found()
    return ends


def _recover(world: World) -> None:
    """The disk is lost, and the topic is recovered from the store."""
    archived = _lose_disk(world)
    ends = world.recover_topic()
    for index, (end, due) in enumerate(zip(ends, archived, strict=True)):
        assert end >= due, f"the log ends at {end}, and {due} was archived"
        truth = world.truth_of(index)
        for offset in [offset for offset in truth.acknowledged if offset >= end]:
            del truth.acknowledged[offset]
        truth.latest = end


def _begin_again(world: World) -> None:
    """The disk is lost, and another cluster uses the same bucket for a topic of the same name."""
    _lose_disk(world)
    for key in [one for one in world.truths if one[0] not in world.controller.topics.by_id]:
        del world.truths[key]
    world.pause(MINUTE)
    world.create(TOPIC, world.kind.configs)
    fill(world)


OPERATIONS: Final[dict[str, Callable[[World], None]]] = {
    "produce": fill,
    "produce, acks=1": _produce_with_one_disk,
    "produce idempotently": _produce_idempotent,
    "commit a transaction": _commit,
    "abort a transaction": _abort,
    "end an empty transaction": _empty_transaction,
    "time out a transaction": _time_out,
    "leave a transaction open": _leave_open,
    "exhaust epochs": _exhaust_epochs,
    "produce without time": _without_time,
    "produce at time 0": _time_zero,
    "produce a year ahead": _future,
    "produce a year ago": _past,
    "produce null keys": _null_keys,
    "produce huge keys": _huge_keys,
    "delete some records": _delete_some,
    "delete all records": _delete_all,
    "retention by time": _retain_by_time,
    "retention by size": _retain_by_size,
    "roll": _roll,
    "compact": _compact,
    "checkpoint": _checkpoint,
    "alter to compact": _altered(cleanup_policy="compact"),
    "alter to delete": _altered(cleanup_policy="delete"),
    "alter to compact and delete": _altered(cleanup_policy="compact,delete"),
    "alter to local": _altered(storage_mode="local"),
    "alter to tiered": _altered(storage_mode="tiered", retention_local_target_ms="1000", segment_upload_max_ms="1000"),
    "alter to shared": _altered(storage_mode="shared"),
    "alter to append time": _altered(message_timestamp_type="LogAppendTime"),
    "alter to zstd": _altered(compression_type="zstd"),
    "alter as created": _as_created,
    "add a partition": _add_partition,
    "delete and create again": _create_again,
    "commit an offset": _commit_offset,
    "leave reads unanswered": _leave_reads,
    "take records as a share group": _share,
    "stop and start": _stop_and_start,
    "kill and start": _kill_and_start,
    "clock a day ahead": _clock(DAY_MS),
    "clock a day back": _clock(-DAY_MS),
    "store away": _store_away,
    "store slow": _store_slow,
    "store refuses": _store_refuses,
    "disk full": _disk_full,
    "recover from the bucket": _recover,
    "begin again in the bucket": _begin_again,
}

OF_CLUSTERS: Final = {
    **FAULTS,
    **{
        name: OPERATIONS[name]
        for name in ("stop and start", "kill and start", "clock a day ahead", "clock a day back", "disk full")
    },
}
"""At least one operation of each pair with a cluster is one of these: the others are played with one broker."""


def operations_of(kind: str) -> dict[str, Callable[[World], None]]:
    """What may happen to a topic of a kind."""
    return OPERATIONS | FAULTS if KINDS[kind].replicas else OPERATIONS


def pairs_of(kind: str) -> list[tuple[str, str]]:
    """The ordered pairs of operations that are played on a kind."""
    names = operations_of(kind)
    every = [(first, second) for first in names for second in names]
    if not KINDS[kind].replicas:
        return every
    return [pair for pair in every if pair[0] in OF_CLUSTERS or pair[1] in OF_CLUSTERS]


REFUSALS: Final = (
    (".*(three|taken).*", ".*", NO_MAJORITY, "replicas are down, or were moved to one broker that is"),
    (
        "shared, (log in store|taken over).*",
        ".*",
        "REQUEST_TIMED_OUT",
        "the store is away, and has to have what is acknowledged",
    ),
    (
        "(tiered|shared).*",
        ".*",
        "REQUEST_TIMED_OUT",
        "the store is away, and may have the log of a partition without files",
    ),
    ("(offsets|state) of .*", "add a partition", "cannot be changed: by it each", "clients find coordinators by it"),
    ("compacted.*", "delete (some|all) records", "POLICY_VIOLATION", "compaction keeps the last value of each key"),
    (".*", "delete (some|all) records", "POLICY_VIOLATION", "as above, after the topic was altered to compact"),
    (".*", "produce.*|.*null keys", "INVALID_RECORD", "a compacted topic takes no record without a key"),
    (".*", "end an empty transaction", "INVALID_TXN_STATE", "a transaction without partitions has nothing to end"),
    (
        ".*events.*",
        ".*transaction.*|exhaust epochs",
        "INVALID_TXN_STATE|INVALID_RECORD",
        "an event topic takes no part in transactions",
    ),
    (".*", "alter to local", "a tiered topic cannot become local", "its history is in the object store"),
    (
        ".*",
        "alter to (local|tiered|shared)",
        "shared from its creation on or never",
        "its batches lie in common files",
    ),
    (".*", "alter .*", "a compacted topic cannot be", "compaction rewrites what is archived"),
    (".*", ".* the bucket", "the store has nothing of the topic", "the topic is not archived"),
    (".*events.*", "take records as a share group", "INVALID_REQUEST", "events are acknowledged in their order"),
    (".*events.*", "alter to zstd", "keep consumers from reading ranges", "data are read in parts"),
    (".*events.*", "alter to shared", "an event topic cannot be shared", "its chunks are files"),
    (".*events.*", "alter to compact.*", "event", "events have no keys"),
    (".*", "cut uncleanly", ONE_ALONE, "it is cut back without the others, by a repair"),
    (".*", "hand the leadership over", "is no voter|has not caught up|no replica", "only one that has all may lead"),
)
"""(kind, operation, the broker's answer, why): the first three are regular expressions."""


def is_listed(kind: str, operation: str, sentence: str) -> bool:
    """Whether a refusal is one that is meant."""
    return any(
        re.fullmatch(of, kind) is not None
        and re.fullmatch(name, operation) is not None
        and re.search(answer, sentence) is not None
        for of, name, answer, _ in REFUSALS
    )
