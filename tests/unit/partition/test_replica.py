"""A partition whose group has several voters, over a real log: commits come when the test says so."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from append_support import NOW, Acks, batch, put
from lagging_support import NOT_LEADER, LaggingGroup

from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.core.producer_state import Duplicate, ProducerBudget, ProducerState, Verdict
from millstream.errors import Unavailable
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.partition.append.batch import Outcome
from millstream.partition.append.checks import append_trusted
from millstream.partition.delete_records import delete_records
from millstream.partition.lifecycle import replay_producers
from millstream.partition.meters import Meters
from millstream.partition.partition import Partition
from millstream.partition.read.batches import read_here
from millstream.partition.read.epoch_end import epoch_end
from millstream.partition.read.list_offsets import EARLIEST, LATEST, list_offset
from millstream.partition.read.request import ReadRequest
from millstream.partition.replica.following import follow_group, record_batches
from millstream.partition.table import PartitionTable
from millstream.raft.group import GroupRole
from millstream.storage.log.entries import SentBatch
from millstream.telemetry.metrics import StatsSlab
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard, recover_locally


class Replica:
    """One replica's partition, with its shard."""

    def __init__(self, shard: LocalShard | None = None, **config: Any) -> None:
        rng = random.Random(1)
        if shard is None:
            disk = SimDisk(rng)
            recover_locally(disk)
            shard = LocalShard(disk, rng)
        self.shard = shard
        self.log = shard.open(1, **config)
        self.group = LaggingGroup(self.log)
        self.producers = ProducerState(60_000, ProducerBudget(10))
        self.producers.keep_changes()
        replay_producers(self.log, self.producers, NOW)
        settings = Settings(data_dir="/nowhere")
        self.partition = Partition(
            "t", bytes(16), 0, 1, self.log, cast(Any, self.group), topic_config({}, settings), self.producers,
            Meters(StatsSlab()),
        )  # fmt: skip
        self.table = PartitionTable()
        self.served: list[str] = []
        self.table.on_open(lambda _: self.served.append("open"))
        self.table.on_close(lambda _: self.served.append("close"))
        self.table.add("t", bytes(16), self.partition)
        follow_group(self.partition, self.table, lambda: NOW)

    def settle(self) -> None:
        self.shard.run(lambda: self.shard.storage.wal.idle)

    def send(self, **options: Any) -> Outcome:
        return put(self.partition, batch(**options))


def read(partition: Partition, offset: int, epoch: int = -1) -> Any:
    armed: list[Partition] = []
    watch = cast(Any, SimpleNamespace(arm=armed.append))
    return read_here(partition, ReadRequest(offset, 1000, leader_epoch=epoch), watch), armed


def listed(partition: Partition, timestamp: int, epoch: int = -1) -> tuple[int, ...]:
    answers: list[tuple[int, ...]] = []
    list_offset(partition, timestamp, epoch, 0, answers.append)
    return answers[0]


def test_a_follower_answers_no_client() -> None:
    replica = Replica()
    partition = replica.partition
    assert replica.send().error_code == NOT_LEADER
    assert read(partition, 0)[0].error_code == NOT_LEADER
    assert read(partition, 0, 2)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH, "Kafka looks at the epoch first"
    assert read(partition, 0, 4)[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert read(partition, 0, 3)[0].error_code == NOT_LEADER
    assert listed(partition, LATEST)[0] == listed(partition, EARLIEST)[0] == NOT_LEADER
    assert epoch_end(partition, -1, 3)[0] == NOT_LEADER
    error = append_trusted(partition, batch())
    assert isinstance(error, Unavailable) and error.code is NOT_LEADER, "not to be tried again in a loop"
    deleted: list[Any] = []
    delete_records(partition, 0, deleted.append)
    assert deleted == [(NOT_LEADER, -1)]
    assert replica.log.next_offset == 0


def test_a_duplicate_that_reaches_a_follower_is_no_success() -> None:
    replica = Replica()
    replica.group.lead()
    ours = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    assert replica.send(**ours).error_code == 0
    replica.group.resign()
    assert replica.send(**ours).error_code == NOT_LEADER


def test_acks_wait_for_the_commit_and_not_for_the_sync() -> None:
    replica = Replica()
    replica.group.lead()
    acks = Acks()
    assert replica.send() == Outcome(0, 0, 1)
    replica.partition.waiters.acks.append((1, acks, 0))
    replica.settle()
    assert (replica.log.durable_offset, acks.acked_slots) == (1, [])
    assert read(replica.partition, 0)[0].data is None, "what is not committed is not read"
    replica.group.commit(1)
    assert acks.acked_slots == [0]
    assert read(replica.partition, 0)[0].data is not None


def test_who_waits_is_answered_first_when_leadership_is_lost() -> None:
    replica = Replica()
    replica.group.lead()
    acks, deleted = Acks(), cast(list[Any], [])
    replica.send()
    replica.group.commit(1)
    replica.send()
    replica.partition.waiters.acks.append((2, acks, 0))
    delete_records(replica.partition, 1, deleted.append)
    _, armed = read(replica.partition, 1)
    assert armed
    replica.group.resign()
    assert (acks.failed_slots, acks.acked_slots, deleted) == ([(0, NOT_LEADER)], [], [(NOT_LEADER, -1)])
    replica.group.commit(2)  # another leader's batch, at the same offset
    assert acks.acked_slots == []


def test_the_first_leader_of_a_new_group_knows_its_offsets_at_once() -> None:
    replica = Replica()
    replica.group.began_group = True
    replica.group.lead()
    assert listed(replica.partition, LATEST)[0] == listed(replica.partition, EARLIEST)[0] == 0


def test_a_new_leader_knows_too_little_for_an_offset_until_its_term_start_is_committed() -> None:
    replica = Replica()
    replica.group.lead()
    replica.send()
    assert listed(replica.partition, LATEST)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    assert listed(replica.partition, EARLIEST)[0] == ErrorCode.OFFSET_NOT_AVAILABLE, "the newest log start neither"
    found, armed = read(replica.partition, 1)
    assert found.error_code == found.high_watermark == 0 and found.data is None and armed, (
        "between the known commit and the log end: nothing yet"
    )
    assert read(replica.partition, 2)[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert replica.served == [], "coordinators load when every committed entry is known"
    replica.group.commit(1)
    replica.group.serve()
    assert listed(replica.partition, LATEST)[:3] == (0, -1, 1)
    replica.group.resign()
    assert replica.served == ["open", "close"]
    replica.group.lead()
    replica.group.resign()
    assert replica.served == ["open", "close"]


def test_acks_all_wants_min_insync_replicas_but_never_more_than_there_are() -> None:
    partition = Replica().partition
    group = cast(Any, partition.group)
    cases = [(1, 3, 1, False), (2, 3, 1, True), (2, 3, 2, False), (3, 3, 2, True), (5, 3, 3, False), (2, 1, 1, False)]
    group.lead()
    for wanted, voters, in_sync, lacking in cases:
        partition.config = topic_config({"min.insync.replicas": str(wanted)}, Settings(data_dir="/nowhere"))
        group.voters, partition.replicas.count = voters, in_sync
        assert partition.lacks_replicas == lacking, (wanted, voters, in_sync)

    def counted(given: Partition) -> None:
        given.replicas.count = 3

    partition.config = topic_config({"min.insync.replicas": "2"}, Settings(data_dir="/nowhere"))
    group.voters, partition.replicas.count, partition.replicas.recount = 3, 1, counted
    assert not partition.lacks_replicas, "who has caught up since the last count is counted before a refusal"
    group.resign()
    partition.replicas.count = 1
    assert not partition.lacks_replicas, "a client of a follower is told that it does not lead"


def test_a_new_leader_takes_acks_all_before_it_has_heard_of_the_others() -> None:
    replica = Replica()
    partition, group = replica.partition, cast(Any, replica.partition.group)
    group.voters = 3
    group.lead()
    assert partition.replicas.count == 3, "of a log without records all are in sync"
    put(partition, batch())
    group.resign()
    group.lead()
    assert partition.replicas.count == 2, "a majority has elected it"


def test_a_batch_that_overtakes_its_predecessors_on_the_way_to_a_new_leader_is_to_be_sent_again() -> None:
    replica = Replica()
    ours = {"producer_id": 5, "producer_epoch": 0}
    first = sent(0, 1, base_sequence=0, **ours)
    replica.log.append(first.views, len(first.views[0]), 0, 0, 3, NOW)
    replica.group.events.on_replicated([first])
    replica.group.lead()
    assert replica.send(base_sequence=2, **ours).error_code == NOT_LEADER, (
        "the batch before was refused by the last leader"
    )
    assert replica.send(base_sequence=1, **ours).error_code == 0
    assert replica.send(base_sequence=2, **ours).error_code == 0
    replica.partition.gaps.until_ms = NOW
    assert replica.send(base_sequence=4, **ours).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    replica.group.role = GroupRole.FOLLOWING  # as while it hands over: it takes nothing, and says so to each batch
    assert [replica.send(base_sequence=sequence, **ours).error_code for sequence in (3, 4, 5)] == [NOT_LEADER] * 3


def sent(base: int, count: int, **options: Any) -> SentBatch:
    data = batch([b"v"] * count, **options)
    first: Any = base
    last: Any = base + count - 1
    term, newest = cast(Any, 3), cast(Any, NOW)
    return SentBatch(first, first, last, term, newest, len(data), [memoryview(data)])


def test_a_follower_that_comes_to_lead_knows_duplicates_and_forgets_what_was_cut() -> None:
    replica = Replica()
    ours = {"producer_id": 5, "producer_epoch": 0}
    replica.group.events.on_replicated([sent(0, 2, base_sequence=0, **ours), sent(2, 1, base_sequence=2, **ours)])
    replica.group.committed_offset = 2
    replica.group.events.on_commit(2)
    producers = replica.producers
    assert producers.check(5, 0, 2, 1) == Duplicate(2, 1, NOW)
    replica.group.events.on_truncate(Offset(2))
    assert producers.check(5, 0, 2, 1) is Verdict.APPEND
    assert producers.check(5, 0, 0, 2) == Duplicate(0, 2, NOW)


def test_a_header_in_two_views_is_read_whole() -> None:
    producers = ProducerState(60_000, ProducerBudget(10))
    one = sent(0, 1, producer_id=5, producer_epoch=1, base_sequence=0)
    view = one.views[0]
    record_batches(producers, [one._replace(views=[view[:30], view[30:]])], NOW)
    assert producers.active() == [(5, 1, 0, NOW, -1, -1)]


@pytest.mark.parametrize("seed", range(30))
def test_producers_are_those_of_the_batches_that_are_left(seed: int) -> None:
    """Batches, commits, cuts and snapshots by chance, against a state that is built anew from the batches."""
    rng = random.Random(seed)
    state = ProducerState(60_000, ProducerBudget(100))
    state.keep_changes()
    log: list[tuple[int, int, int, int, int]] = []
    offset = committed = 0

    def built(until: int) -> ProducerState:
        made = ProducerState(60_000, ProducerBudget(100))
        for pid, epoch, sequence, count, base in log:
            if base < until:
                made.record(pid, epoch, sequence, count, base, NOW, NOW)
        return made

    def facts(one: ProducerState) -> Any:
        return sorted(one.active()), one.last_offsets(), len(one)

    for _ in range(200):
        match rng.choice(["batch", "batch", "batch", "commit", "cut", "snapshot"]):
            case "batch":
                pid, count = rng.randint(1, 4), rng.randint(1, 3)
                log.append((pid, rng.randint(0, 2), rng.randint(0, 100), count, offset))
                state.record(*log[-1], NOW, NOW)
                offset += count
            case "commit":
                ends = [base + count for *_, count, base in log if base + count >= committed]
                committed = rng.choice([committed, *ends])
                state.committed(committed)
            case "cut":
                cut = rng.choice([base for *_, base in log if base >= committed] or [offset])
                log, offset = [one for one in log if one[4] < cut], cut
                state.take_back(cut)
                assert facts(state) == facts(built(offset)), f"seed {seed}"
            case _:
                loaded = ProducerState(60_000, ProducerBudget(100))
                loaded.load(state.snapshot(committed))
                assert facts(loaded) == facts(built(committed)), f"seed {seed}"
    assert facts(state) == facts(built(offset))


def test_after_a_crash_a_truncation_takes_back_what_was_not_committed() -> None:
    """The snapshot is as of the commit, so that what is replayed behind it can be undone."""
    replica = Replica()
    replica.group.lead()
    ours = {"producer_id": 5, "producer_epoch": 0}
    replica.send(base_sequence=0, **ours)
    replica.group.commit(1)
    replica.send(base_sequence=1, **ours)
    replica.settle()
    replica.log.files.snapshots.wanted = True
    replica.shard.call(replica.shard.storage.checkpoint)
    assert replica.log.files.snapshots.newest is not None and replica.log.files.snapshots.newest[0] == 1
    replica.shard.disk.crash(torn=False)
    recover_locally(replica.shard.disk)
    again = Replica(LocalShard(replica.shard.disk, random.Random(2), clean=False))
    assert again.producers.check(5, 0, 1, 1) == Duplicate(1, 1, NOW)
    again.group.events.on_truncate(Offset(1))
    assert again.producers.check(5, 0, 1, 1) is Verdict.APPEND
    assert again.producers.check(5, 0, 0, 1) == Duplicate(0, 1, NOW)


def test_a_log_start_is_agreed_before_it_moves() -> None:
    replica = Replica()
    replica.group.lead()
    for _ in range(4):
        replica.send()
    replica.settle()
    replica.group.commit(3)
    deleted: list[Any] = []
    delete_records(replica.partition, 2, deleted.append)
    assert replica.group.starts == [2]
    assert (deleted, replica.log.start_offset) == ([], 0)
    replica.log.trim_prefix(2)  # it is committed
    replica.settle()
    assert deleted == [(0, 2)]
    delete_records(replica.partition, 4, deleted.append)
    assert deleted[1:] == [(ErrorCode.OFFSET_NOT_AVAILABLE, -1)], "it may be committed: a new leader does not know"
    replica.group.is_serving = True
    delete_records(replica.partition, 4, deleted.append)
    assert deleted[2:] == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)], "what is not committed is not deleted"


def test_retention_asks_the_group_and_only_for_what_is_committed() -> None:
    replica = Replica(segment_bytes=100, retention_bytes=1)
    replica.group.lead()
    for _ in range(6):
        replica.send()
        replica.settle()
    replica.group.commit(3)
    replica.shard.storage.housekeeping.retain(replica.log)
    replica.settle()
    assert replica.group.starts == [3]
    assert replica.log.start_offset == 0
    replica.group.resign()
    replica.shard.storage.housekeeping.retain(replica.log)
    assert replica.group.starts == [3], "a follower waits for its leader"
    assert replica.log.stable_offset == 3, "compaction looks no further either"
