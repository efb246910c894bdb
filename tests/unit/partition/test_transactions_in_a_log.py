"""Transactions in one partition, over a real log: what is taken, what is stable, and all of it again after a crash."""

import random
from typing import Any

import pytest

from millstream.format.events.batch import build_event_batch, decode_event_batch
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import TimestampMs
from millstream.partition.append.batch import Blocked, Outcome
from millstream.partition.append.checks import append, append_trusted
from millstream.partition.append.markers import Marker, append_marker
from millstream.partition.read.batches import read_here, read_older
from millstream.partition.read.request import ReadRequest
from millstream.storage.log import event_log
from millstream.storage.log.event_log import EventLog
from millstream.wire.records import ABORT, build_batch, control_record
from sim.engine.disk import SimDisk
from sim.storage.event_topics import events_config
from sim.storage.life import Life
from sim.storage.models import TopicModel

SETTINGS = {"wal_file_bytes": 65_536, "wal_bytes": 4 * 65_536}
TOPIC = TopicModel(1, "topic", {})
NOW = 1_700_000_000_000


class World:
    """One partition on a disk that survives `crash`."""

    def __init__(self, snapshot_bytes: int = 1, topic: TopicModel = TOPIC) -> None:
        self.topic = topic
        self.disk = SimDisk(random.Random(1))
        self.snapshot_bytes = snapshot_bytes
        self.sequences: dict[tuple[int, int], int] = {}
        self.start()

    def start(self) -> None:
        self.life = Life(self.disk, random.Random(1), [self.topic], shards=1, now_ms=NOW, settings=SETTINGS)
        self.life.shard(self.topic.group).storage.checkpointer.snapshot_bytes = self.snapshot_bytes

    @property
    def partition(self) -> Any:
        return self.life.partition(self.topic)

    def crash(self) -> None:
        self.disk.crash(torn=False)
        self.start()

    def settle(self) -> None:
        shard = self.life.shard(self.topic.group)
        shard.run(lambda: shard.storage.wal.idle)

    def put(self, producer: int, epoch: int = 0, **options: Any) -> Any:
        sequence = self.sequences.get((producer, epoch), 0)
        transactional = options.pop("transactional", True)
        data = build_batch(
            [(None, b"v", (), NOW)],
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
            control=options.pop("control", False),
        )
        named = options.pop("named", transactional)
        outcome = append(self.partition, [memoryview(data)], len(data), NOW, accepts_writes=True, transactional=named)
        if isinstance(outcome, Outcome) and not outcome.error_code:
            self.sequences[producer, epoch] = sequence + 1
        self.settle()
        return outcome

    def commit_offsets(self, producer: int, epoch: int = 0) -> Any:
        """A batch without a sequence, as a group coordinator writes it for a transaction."""
        data = build_batch([(b"k", b"v", (), NOW)], producer_id=producer, producer_epoch=epoch, transactional=True)
        outcome = append_trusted(self.partition, data)
        self.settle()
        return outcome

    def verify(self, producer: int, epoch: int = 0) -> None:
        transactions = self.partition.transactions
        assert transactions.verified(producer, epoch, transactions.ask_verification(producer, epoch))

    def mark(
        self, producer: int, epoch: int = 0, *, commits: bool = True, version: int = 0, coordinator: int = 1
    ) -> Any:
        told: list[ErrorCode] = []
        append_marker(self.partition, Marker(producer, epoch, commits, coordinator, version), NOW, told.append)
        self.settle()
        (code,) = told
        return code

    def stable(self) -> int:
        return self.partition.last_stable_offset

    def read(self, offset: int, max_bytes: int = 1 << 20) -> Any:
        """What a read_committed reader gets."""
        watch: Any = type("Watch", (), {"arm": lambda self, partition: None})()
        told: list[Any] = []
        result = read_here(self.partition, ReadRequest(offset, max_bytes, committed=True), watch)
        if result is None:
            read_older(self.partition, ReadRequest(offset, max_bytes, committed=True), told.append)
            self.life.shard(1).run(lambda: bool(told))
            (result,) = told
        return result

    def read_committed(self, offset: int = 0) -> tuple[int, list[tuple[int, int]]]:
        """(end of what may be read, aborted transactions in it)"""
        result = self.read(offset)
        if result.data is not None:
            result.data.release()
        return result.last_stable_offset, result.aborted or []


def test_a_batch_whose_transaction_nobody_vouches_for_opens_none() -> None:
    world = World()
    assert world.put(1) is Blocked.NEEDS_VERDICT
    world.verify(1)
    assert world.put(1).error_code == 0
    assert world.put(1).error_code == 0, "the transaction is open: nobody is asked"
    assert world.put(1, named=False).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert world.put(1, transactional=False).error_code == ErrorCode.INVALID_TXN_STATE
    assert world.put(1, control=True).error_code == ErrorCode.INVALID_RECORD
    world.mark(1)
    assert world.put(1) is Blocked.NEEDS_VERDICT, "the next transaction"


@pytest.mark.parametrize("end", ["on", "snapshot", "replay"])
def test_the_stable_offset_and_the_aborted_list_survive_a_crash(end: str) -> None:
    world = World(snapshot_bytes=1 if end == "snapshot" else 1 << 30)
    for producer in (1, 2, 3):
        world.verify(producer)
        world.put(producer)
    assert world.stable() == 0
    assert world.mark(1, commits=False) is ErrorCode.NONE
    assert world.stable() == 1
    assert world.mark(2) is ErrorCode.NONE
    assert world.stable() == 2
    world.put(3)
    if end == "snapshot":
        world.life.shard(1).call(world.life.shard(1).storage.checkpoint)
    if end != "on":
        world.crash()
    assert world.read_committed() == (2, [(1, 0)])
    assert world.partition.first_unstable() == 2
    assert [one[5] for one in world.partition.producers.active()] == [-1, -1, 2]
    world.verify(3)  # after a crash the coordinator is asked again
    assert world.put(3).error_code == 0, "its transaction is open still"
    world.mark(3, commits=False)
    assert world.read_committed() == (world.partition.high_watermark, [(1, 0), (3, 2)])
    assert world.read_committed(5) == (world.partition.high_watermark, [(3, 2)])


def test_a_marker_of_a_later_epoch_fences_what_comes_late() -> None:
    world = World()
    world.verify(1)
    world.put(1)
    assert world.mark(1, 1, version=2) is ErrorCode.NONE
    end = world.partition.log.next_offset
    assert world.mark(1, 1, version=2) is ErrorCode.NONE
    assert world.partition.log.next_offset == end, "it is written once"
    world.verify(1, 0)
    assert world.put(1, 0).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.mark(1, 0) is ErrorCode.INVALID_PRODUCER_EPOCH
    world.verify(1, 1)
    assert world.put(1, 1).error_code == 0, "the next epoch begins at sequence 0"


def test_a_batch_of_the_next_epoch_does_not_join_the_transaction_whose_marker_is_on_its_way() -> None:
    """The client has its next epoch as soon as the decision is durable (KIP-890), which may be before the marker."""
    world = World()
    world.verify(1, 0)
    world.put(1, 0)
    assert world.put(1, 1) is Blocked.NEEDS_VERDICT
    question = world.partition.transactions.ask_verification(1, 1)
    assert world.mark(1, 1, commits=True, version=2) is ErrorCode.NONE
    assert world.partition.transactions.verified(1, 1, question), "the marker was that of the transaction before"
    assert world.put(1, 1).error_code == 0
    assert world.stable() == 2


def test_a_marker_that_comes_again_does_not_end_the_next_transaction() -> None:
    world = World()
    world.verify(1, 0)
    world.put(1, 0)
    assert world.mark(1, 1, commits=True, version=2) is ErrorCode.NONE
    world.verify(1, 1)
    world.put(1, 1)
    assert world.mark(1, 1, commits=True, version=2) is ErrorCode.NONE
    assert world.stable() == 2, "the next transaction is open still"
    assert world.mark(1, 2, commits=False, version=2) is ErrorCode.NONE
    assert world.read_committed() == (4, [(1, 2)])


@pytest.mark.parametrize("end", ["on", "snapshot", "replay"])
def test_a_marker_of_an_earlier_epoch_ends_no_transaction_of_offsets(end: str) -> None:
    world = World(snapshot_bytes=1 if end == "snapshot" else 1 << 30)
    world.verify(1, 1)
    world.commit_offsets(1, 1)
    if end == "snapshot":
        world.life.shard(1).call(world.life.shard(1).storage.checkpoint)
    if end != "on":
        world.crash()
    assert world.mark(1, 0) is ErrorCode.INVALID_PRODUCER_EPOCH
    world.verify(1, 0)
    assert world.commit_offsets(1, 0).code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.stable() == 0, "it is open still"
    assert world.mark(1, 2, version=2) is ErrorCode.NONE
    assert world.stable() == 2


def test_offsets_and_records_of_a_producer_share_an_epoch_and_no_sequence() -> None:
    world = World()
    world.verify(1)
    world.put(1)
    world.commit_offsets(1)
    assert world.put(1).error_code == 0, "offsets take no sequence"
    world.verify(2)
    world.commit_offsets(2)
    assert world.put(2).error_code == 0
    assert world.put(2).error_code == 0


def test_a_transaction_in_the_last_epoch_of_its_producer_ends() -> None:
    """An earlier broker gave that epoch to a producer; no marker can have a later one."""
    world = World()
    world.verify(1, 0x7FFF)
    world.put(1, 0x7FFF)
    assert world.mark(1, 0x7FFF, commits=False, version=2) is ErrorCode.NONE
    assert world.read_committed() == (2, [(1, 0)])
    assert world.mark(1, 0x7FFF, commits=False, version=2) is ErrorCode.NONE
    assert world.partition.log.next_offset == 2, "it is written once"


def test_a_coordinator_that_was_replaced_ends_nothing() -> None:
    world = World()
    world.verify(1)
    world.put(1)
    world.mark(1, coordinator=5)
    world.crash()
    world.verify(1)
    world.put(1)
    assert world.mark(1, coordinator=4) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert world.mark(1, coordinator=6) is ErrorCode.NONE


def test_retention_stops_at_a_transaction_that_is_open() -> None:
    world = World()
    world.put(9, transactional=False)
    world.verify(1)
    world.put(1)
    world.put(9, transactional=False)
    assert world.partition.log.stable_offset == 1
    world.mark(1)
    assert world.partition.log.stable_offset == 4


def test_a_marker_for_a_partition_without_a_record_of_the_transaction_is_not_written() -> None:
    world = World()
    world.put(9, transactional=False)
    world.verify(1)
    assert world.mark(1, 1, version=2) is ErrorCode.NONE
    assert world.mark(2, commits=False) is ErrorCode.NONE
    assert world.partition.log.next_offset == 1
    assert world.put(1, 0) is Blocked.NEEDS_VERDICT, "what comes late is asked about"
    world.crash()
    assert world.partition.log.next_offset == 1
    assert world.put(1, 0) is Blocked.NEEDS_VERDICT


def test_a_marker_that_is_not_written_makes_earlier_questions_void() -> None:
    world = World()
    transactions = world.partition.transactions
    old, following = transactions.ask_verification(1, 0), transactions.ask_verification(2, 1)
    assert world.mark(1, 0, version=0) is ErrorCode.NONE
    assert world.mark(2, 1, version=2) is ErrorCode.NONE
    assert not transactions.verified(1, 0, old)
    assert transactions.verified(2, 1, following), "of the transaction behind the one that has ended"


def test_a_marker_that_is_not_written_fences_older_coordinators() -> None:
    world = World()
    assert world.mark(1, coordinator=5) is ErrorCode.NONE
    world.verify(1)
    assert world.put(1).error_code == 0
    assert world.mark(1, coordinator=4) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert world.stable() == 0, "the transaction is open still"
    assert world.mark(1, coordinator=5) is ErrorCode.NONE


def test_verifications_of_an_earlier_leadership_do_not_count() -> None:
    world = World()
    world.verify(1)
    question = world.partition.transactions.ask_verification(2, 0)
    world.partition.resign()
    world.partition.lead()
    assert world.put(1) is Blocked.NEEDS_VERDICT
    assert not world.partition.transactions.verified(2, 0, question)


EVENTS = TopicModel(1, "frames", {**events_config(random.Random(1)), "events_serializer": "default"})


def event_at(world: World, offset: int) -> bytes:
    """Metadata of the event at an offset, read with its checksum."""
    result = world.read(offset, 1)
    batch = decode_event_batch(bytes(result.data), event_bytes_max=1000)
    result.data.release()
    return bytes(batch.metadata)


def test_a_batch_of_a_transaction_never_enters_a_log_of_events() -> None:
    world = World(topic=EVENTS)
    partition = world.partition
    for control in (False, True):
        data = build_batch(
            [(None, b"{}", (), NOW)],
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
            control=control,
        )
        outcome = append(partition, [memoryview(data)], len(data), NOW, accepts_writes=True, transactional=True)
        assert outcome.error_code == (ErrorCode.INVALID_RECORD if control else ErrorCode.INVALID_TXN_STATE)
    assert world.mark(1) is ErrorCode.NONE
    assert world.mark(1, 1, version=2) is ErrorCode.NONE
    assert partition.log.next_offset == 0


@pytest.mark.parametrize("where", ["write-ahead log", "leader"])
def test_a_log_of_events_bears_a_marker_of_an_earlier_broker(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the write-ahead log, or comes from a leader that is not upgraded yet."""
    world = World(topic=EVENTS)

    def put_event(text: bytes) -> None:
        (data,) = build_event_batch([text], [[]], now_ms=TimestampMs(NOW))
        view = memoryview(bytes(data))
        assert append(world.partition, [view], len(view), NOW, accepts_writes=True).error_code == 0
        world.settle()

    put_event(b'{"n": 0}')
    marker = build_batch(
        [control_record(ABORT, 3, NOW)], producer_id=1, producer_epoch=0, transactional=True, control=True
    )
    if where == "write-ahead log":
        monkeypatch.setattr(event_log, "is_marker", lambda batch: False)
        monkeypatch.setattr(EventLog, "_require_events", lambda log, views: None)
    world.partition.group.replicate((memoryview(marker[:30]), memoryview(marker[30:])), len(marker), 1, NOW)
    world.settle()
    if where == "write-ahead log":
        world.crash()
        monkeypatch.undo()
    put_event(b'{"n": 2}')
    for _ in range(2):
        assert [event_at(world, offset).strip() for offset in range(3)] == [b'{"n": 0}', b"{}", b'{"n": 2}']
        world.crash()
    assert world.life.partition(EVENTS).log.next_offset == 3
