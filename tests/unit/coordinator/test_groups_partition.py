"""The shell of one partition: loading, batching, durability, failure, closing."""

import pytest
from coordinator_fakes import Broker, FakePartition, FakeReactor, batch_of

from millstream.coordinator.asks import DELETE_GROUPS, HEARTBEAT, OFFSET_COMMIT
from millstream.coordinator.groups_partition import GroupsPartition
from millstream.coordinator.hashing import partition_of
from millstream.coordinator.records import encode_record
from millstream.coordinator.state_partition import State, client_code
from millstream.core.group.commit import offset_record
from millstream.core.group.counts import GroupCounts
from millstream.core.group.image import group_tombstone
from millstream.core.group.offsets import CommittedOffset
from millstream.core.group.outputs import Commit, GroupSettings
from millstream.errors import Corruption, OutcomeUnknown, Retriable, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.records import parse_header


def commit_request(group="g", offset=5, partitions=(0,), topic="t") -> OffsetCommitRequest:
    found = [OffsetCommitRequestPartition(partition_index=i, committed_offset=offset) for i in partitions]
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=found)])


def stored(group: str, offset: int, topic: str = "t", partition: int = 0):
    return encode_record(*offset_record(group, topic, partition, CommittedOffset(offset, -1, "", 1)))


def opened(partition: FakePartition) -> tuple[GroupsPartition, FakeReactor]:
    reactor = FakeReactor()
    return GroupsPartition(partition, reactor, GroupSettings(), GroupCounts(), lambda: None), reactor


def commit(groups: GroupsPartition, answers: list, **options) -> None:
    groups.step(Commit(answers.append, commit_request(**options), 9))


def codes(answer) -> list[int]:
    if isinstance(answer, ErrorCode):
        return [answer]
    return [p.error_code for t in answer.topics for p in t.partitions]


def test_an_empty_log_is_ready_at_once():
    groups, _ = opened(FakePartition(0))
    assert groups.state is State.ACTIVE


def test_a_log_is_replayed_in_slices_over_several_reads():
    batches = [
        batch_of(*[stored(f"g{i}", i) for i in range(n * 50, n * 50 + 50)], base_offset=n * 50) for n in range(400)
    ]
    partition = FakePartition(0, batches)
    groups, reactor = opened(partition)
    assert groups.state is State.LOADING
    assert groups.refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    reactor.turn()
    assert groups.state is State.ACTIVE
    assert len(groups.core.groups) == 20_000
    assert len(partition.reads) > 2
    assert groups.core.groups["g19999"].offsets.get("t", 0).offset == 19_999


def test_the_last_record_of_a_key_counts_and_tombstones_forget():
    key, _ = stored("g", 1)
    partition = FakePartition(
        0, [batch_of(stored("g", 1), stored("h", 2)), batch_of(stored("h", 3), (key, None), base_offset=2)]
    )
    groups, reactor = opened(partition)
    reactor.turn()
    assert set(groups.core.groups) == {"h"}
    assert groups.core.groups["h"].offsets.get("t", 0).offset == 3


def test_records_count_in_the_order_of_their_last_ones_as_in_a_compacted_log():
    """An offset has had keys of two versions."""
    key, new = stored("g", 3)
    older = b"\0\0" + key[2:]
    partition = FakePartition(0, [batch_of(stored("g", 1), (older, stored("g", 2)[1]), (key, new))])
    groups, reactor = opened(partition)
    reactor.turn()
    assert groups.core.groups["g"].offsets.get("t", 0).offset == 3


def test_what_was_committed_after_a_group_was_forgotten_is_there():
    group_key, _ = encode_record(*group_tombstone("g"))
    offset_key, _ = stored("g", 1)
    partition = FakePartition(
        0, [batch_of(stored("g", 1), (group_key, b"\0\3\0\0" + bytes(20)), (offset_key, None), (group_key, None))]
    )
    partition.batches.append(batch_of(stored("g", 2), base_offset=4))
    partition.high_watermark = 5
    groups, reactor = opened(partition)
    reactor.turn()
    assert groups.core.groups["g"].offsets.get("t", 0).offset == 2


def test_a_read_that_has_to_wait_is_tried_again():
    partition = FakePartition(0, [batch_of(stored("g", 1))])
    partition.read_error = Retriable("no memory")
    groups, reactor = opened(partition)
    reactor.turn()
    assert groups.state is State.LOADING
    reactor.advance(1_000)
    assert groups.state is State.ACTIVE


@pytest.mark.parametrize("what", ["record", "batch", "read", "nothing"])
def test_a_log_that_cannot_be_read_stops_this_partition_with_a_line(what: str, capfd):
    good = batch_of(stored("g", 1))
    bad = batch_of((b"\0\1broken", b"x"), base_offset=1)
    partition = FakePartition(7, [good, bad])
    if what == "batch":
        partition.batches[1] = bad[:61] + b"\xff" * (len(bad) - 61)
    elif what == "read":
        partition.read_error = Corruption("checksum of the batch at offset 1")
    elif what == "nothing":
        partition.read = lambda offset, size, done: done([])
    groups, reactor = opened(partition)
    reactor.turn()
    assert groups.state is State.FAILED
    assert groups.refusal is ErrorCode.NOT_COORDINATOR
    line = capfd.readouterr().err
    assert "__consumer_offsets/7" in line
    assert "ERROR" in line
    assert "offset" in line


def test_a_partition_closed_while_it_loads_is_left_alone():
    partition = FakePartition(0, [batch_of(stored("g", 1))])
    partition.defer = []
    groups, reactor = opened(partition)
    groups.close()
    partition.defer[0]()
    reactor.turn()
    assert groups.state is State.CLOSED


def test_a_commit_is_answered_after_the_sync_and_never_before():
    partition = FakePartition(0)
    partition.hold = True
    groups, reactor = opened(partition)
    answers: list = []
    commit(groups, answers)
    reactor.turn()
    assert len(partition.waiting) == 1
    assert answers == []
    partition.persist()
    assert codes(answers[0]) == [0]


def test_the_writes_of_one_turn_share_a_batch_in_their_order():
    partition = FakePartition(0)
    groups, reactor = opened(partition)
    answers: list = []
    for offset in range(10):
        commit(groups, answers, offset=offset)
    assert partition.batches == []
    reactor.turn()
    assert len(partition.batches) == 1
    assert parse_header(partition.batches[0]).record_count == 10
    assert len(answers) == 10
    again, reactor = opened(FakePartition(0, partition.batches))
    reactor.turn()
    assert again.core.groups["g"].offsets.get("t", 0).offset == 9


def test_large_turns_are_cut_between_requests():
    partition = FakePartition(0)
    groups, reactor = opened(partition)
    answers: list = []
    for _ in range(3):
        commit(groups, answers, partitions=range(4_000), topic="a" * 60)
    reactor.turn()
    assert [parse_header(b).record_count for b in partition.batches] == [4_000, 4_000, 4_000]
    assert len(answers) == 3


def test_very_much_is_written_over_several_turns_in_its_order():
    partition = FakePartition(0)
    groups, reactor = opened(partition)
    answers: list = []
    for _ in range(5):
        commit(groups, answers, partitions=range(600))
    reactor.enders.pop()()  # the end of this turn
    assert [parse_header(b).record_count for b in partition.batches] == [1_200]
    commit(groups, answers, partitions=range(7))
    reactor.turn()
    assert [parse_header(b).record_count for b in partition.batches] == [1_200, 1_200, 607]
    assert len(answers) == 6


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Retriable("", ErrorCode.COORDINATOR_NOT_AVAILABLE), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (Unavailable("", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (Unavailable("disk full"), ErrorCode.NOT_COORDINATOR),
        (OutcomeUnknown(""), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (Corruption(""), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_write_that_fails_is_told_to_whom_it_concerns(error, code: ErrorCode):
    partition = FakePartition(0)
    groups, reactor = opened(partition)
    partition.refuse = error
    answers: list = []
    commit(groups, answers)
    reactor.turn()
    assert codes(answers[0]) == [code]
    assert client_code(error) is code
    partition.refuse = None
    commit(groups, answers)
    reactor.turn()
    assert codes(answers[1]) == [0]


def test_closing_refuses_what_waits_and_ignores_what_comes_after():
    partition = FakePartition(0)
    partition.hold = True
    groups, reactor = opened(partition)
    answers: list = []
    commit(groups, answers)
    reactor.turn()
    commit(groups, answers)
    groups.close()
    assert answers == [ErrorCode.NOT_COORDINATOR] * 2
    partition.persist()
    reactor.turn()
    reactor.advance(10_000_000)
    assert answers == [ErrorCode.NOT_COORDINATOR] * 2


def test_stopping_answers_what_is_being_written_and_refuses_the_rest():
    broker = Broker(partitions=1, logs={})
    router = broker.routers[0]
    (partition,) = broker.partitions.values()
    partition.hold = True
    answers: list = []
    router.ask("g", OFFSET_COMMIT, 9, "c", "h", commit_request(), answers.append)
    broker.reactor.turn()
    router.ask("h", OFFSET_COMMIT, 9, "c", "h", commit_request("h"), answers.append)
    router.stop()
    router.ask("i", OFFSET_COMMIT, 9, "c", "h", commit_request("i"), answers.append)
    assert answers == [ErrorCode.NOT_COORDINATOR]
    broker.reactor.turn()
    partition.persist()
    assert [codes(a) for a in answers[1:]] == [[0], [0]]
    assert router.local.partitions[0].state is State.CLOSED


def test_a_commit_with_too_much_to_write_is_refused_in_its_turn_and_the_others_stay():
    broker = Broker(partitions=1, logs={})
    router = broker.routers[0]
    (partition,) = broker.partitions.values()
    partition.hold = True
    answers: list = []
    long = "g" * 32_767
    for request in (commit_request(long), commit_request(long, partitions=range(200)), commit_request("h")):
        router.ask(long, OFFSET_COMMIT, 9, "c", "h", request, answers.append)
    broker.reactor.turn()
    assert answers == []
    assert max(map(len, (batch for batch, _, _ in partition.waiting))) < 100_000
    partition.persist()
    broker.reactor.turn()
    assert [set(codes(answer)) for answer in answers] == [{0}, {ErrorCode.UNKNOWN_SERVER_ERROR}, {0}]
    assert router.local.partitions[0].core.groups[long].offsets.get("t", 0).offset == 5


def test_all_offsets_of_a_group_with_a_long_id_go_however_many():
    broker = Broker(partitions=1, logs={})
    router = broker.routers[0]
    answers: list = []
    long = "g" * 32_767
    for first in (0, 100, 200):
        partitions = range(first, first + 100)
        router.ask(long, OFFSET_COMMIT, 9, "c", "h", commit_request(long, partitions=partitions), answers.append)
    broker.reactor.turn()
    router.ask(long, DELETE_GROUPS, 2, "c", "h", DeleteGroupsRequest(groups_names=[long]), answers.append)
    broker.reactor.turn()
    assert answers[-1].error_code == 0
    assert broker.restart().routers[0].local.partitions[0].core.groups == {}


def test_who_looks_for_a_coordinator_that_cannot_be_made_leaves_a_few_lines_a_minute(capfd):
    broker = Broker()
    broker.fail_creation = True
    for _ in range(100):
        broker.routers[0].ensure(lambda error: None)
    assert capfd.readouterr().err.count("could not be created") < 10


def test_a_topic_deleted_while_groups_load_takes_its_offsets_along():
    partition = FakePartition(0, [batch_of(stored("g", 1, "gone"), stored("g", 2, "kept"))])
    groups, reactor = opened(partition)
    groups.topic_deleted("gone", bytes(16))
    reactor.turn()
    assert set(groups.core.groups["g"].offsets.topics) == {"kept"}
    assert partition.records()[-1].value is None


def test_whoever_waits_for_the_groups_is_told_when_the_last_partition_has_them():
    broker = Broker(partitions=3)
    told: list[str] = []
    broker.routers[0].when_loaded(lambda: told.append("nothing to load"))
    good, bad = batch_of(stored("g", 1)), batch_of((b"\0\1", b""))
    broker.open({0: [good], 2: [bad]}, run=False)
    broker.routers[0].when_loaded(lambda: told.append("loaded"))
    assert told == ["nothing to load"]
    broker.reactor.turn()
    assert told == ["nothing to load", "loaded"]
    assert [p.state for p in broker.routers[0].local.partitions.values()] == [State.ACTIVE, State.ACTIVE, State.FAILED]


def test_expired_offsets_are_looked_for_on_a_timer():
    broker = Broker(partitions=1, logs={}, offsets_retention_minutes=1)
    answers: list = []
    broker.routers[0].ask("g", OFFSET_COMMIT, 9, "c", "h", commit_request(), answers.append)
    broker.reactor.turn()
    groups = broker.routers[0].local.partitions[0]
    assert set(groups.core.groups) == {"g"}
    broker.reactor.advance(660_000)
    assert groups.core.groups == {}
    assert broker.restart().routers[0].local.partitions[0].core.groups == {}


def test_groups_are_counted_in_the_metrics():
    broker = Broker(partitions=1, logs={})
    router = broker.routers[0]
    router.ask("g", OFFSET_COMMIT, 9, "c", "h", commit_request(partitions=(0, 1)), lambda answer: None)
    broker.reactor.advance(2_000)
    assert router.stats.gauge("group_count", state="Empty").value == 1
    assert router.stats.counter("group_offset_commits").value == 2


def test_a_partition_that_closes_and_opens_again_has_its_groups():
    broker = Broker(partitions=1, logs={})
    answers: list = []
    broker.routers[0].ask("g", OFFSET_COMMIT, 9, "c", "h", commit_request(), answers.append)
    broker.reactor.turn()
    (partition,) = broker.partitions.values()
    for callback in broker.tables[0].closed:
        callback(partition)
    beat = HeartbeatRequest(group_id="g", member_id="m")
    broker.routers[0].ask("g", HEARTBEAT, 4, "c", "h", beat, answers.append)
    assert answers[-1] is ErrorCode.NOT_COORDINATOR
    for callback in broker.tables[0].opened:
        callback(partition)
    broker.reactor.turn()
    assert broker.routers[0].local.partitions[0].core.groups["g"].offsets.get("t", 0).offset == 5
    assert partition_of("g", 1) == 0
