"""Unclean cuts: whose replica a partition continues from, as every broker is told."""

import msgspec
import pytest
from controller_bench import Bench, disk

from millstream.core.controller.commands import PartitionCut, PartitionCutDone, decode_command, encode_command
from millstream.core.controller.cutting import TERM_GAP
from millstream.core.controller.requests import (
    CompleteCut,
    CreateTopic,
    CutPartition,
    DeleteTopics,
    TopicReference,
    decode_request,
    encode_request,
)
from millstream.core.controller.state import decode_state, encode_state
from millstream.errors import Corruption
from millstream.model.error_code import ErrorCode


def asked(**changes):
    return msgspec.structs.replace(CutPartition("t", 0, 2, 9, 40, "all disks are damaged"), **changes)


@pytest.fixture
def bench():
    made = Bench(brokers=(1, 2, 3), level=7)
    made.create(CreateTopic("t", 2, 3))
    return made


def cut(bench):
    group = bench.state.topics["t"].partitions[0].raft_group
    return bench.state.cuts.get(group)


def test_a_cut_names_the_replica_in_a_term_that_nobody_had(bench):
    (result,) = bench.do(decode_request(encode_request(asked())))
    assert not result.error
    known = bench.state.topics["t"].partitions[0].leader_epoch
    assert (cut(bench).replica, cut(bench).end_offset, cut(bench).done) == (2, 40, False)
    assert cut(bench).term == max(9, known) + TERM_GAP
    assert list(bench.state.cuts) == [bench.state.topics["t"].partitions[0].raft_group]


def test_it_is_done_once_and_a_later_one_replaces_it(bench):
    topic_id = bench.state.topics["t"].topic_id
    bench.do(asked())
    first = cut(bench).term
    assert not bench.decide(CompleteCut(topic_id, 0, first - 1)).commands
    bench.do(CompleteCut(topic_id, 0, first))
    assert cut(bench).done
    assert not bench.decide(CompleteCut(topic_id, 0, first)).commands
    bench.do(asked(node=3))
    assert (cut(bench).replica, cut(bench).term, cut(bench).done) == (3, first + TERM_GAP, False)
    bench.do(CompleteCut(topic_id, 0, first))
    assert not cut(bench).done, "what completes an earlier cut does not complete a later one"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic": "u"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"index": 2}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"index": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"node": 9}, ErrorCode.INVALID_REQUEST),
        ({"node": 3}, ErrorCode.INVALID_REQUEST),
        ({"topic": "alone", "node": 1}, ErrorCode.INVALID_REQUEST),
        ({"term": 1 << 31}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_is_refused(bench, changes, error):
    bench.create(CreateTopic("alone", assignments=((0, (1,)),)))
    bench.fence(3)
    decision = bench.decide(asked(**changes))
    assert decision.results[0].error == error and decision.results[0].message
    assert not decision.commands


def test_a_cluster_with_older_brokers_has_no_such_command():
    bench = Bench(brokers=(1, 2, 3), level=6)
    bench.create(CreateTopic("t", 2, 3))
    decision = bench.decide(asked())
    assert decision.results[0].error == ErrorCode.UNSUPPORTED_VERSION
    assert "finish the upgrade of every broker first" in decision.results[0].message
    with pytest.raises(Corruption, match="a command of feature level 7 in a cluster of level 6"):
        bench.state.apply(PartitionCut(bench.state.topics["t"].topic_id, 0, 2, 9, 1, ""))


def test_cuts_are_in_a_snapshot_that_older_releases_refuse_and_go_with_their_topic(bench):
    before = encode_state(bench.state)
    assert before[:10].endswith(b"\x03"), "a state without cuts is written as before"
    bench.do(asked())
    stored = encode_state(bench.state)
    assert stored[:10].endswith(b"\x05")
    again = decode_state(stored)
    assert again == bench.state == bench.state.copy()
    assert again.cuts == bench.state.cuts
    copy = bench.state.copy()
    bench.do(CompleteCut(bench.state.topics["t"].topic_id, 0, cut(bench).term))
    assert not next(iter(copy.cuts.values())).done
    bench.do(DeleteTopics((TopicReference("t"),)))
    assert not bench.state.cuts


def test_a_log_that_contradicts_itself_is_corruption(bench):
    topic_id = bench.state.topics["t"].topic_id
    bench.do(asked())
    term = cut(bench).term
    for command in (
        PartitionCut(topic_id, 0, 2, term, 40, ""),
        PartitionCut(topic_id, 9, 2, term + 1, 40, ""),
        PartitionCut(disk(9), 0, 2, term + 1, 40, ""),
        PartitionCut(topic_id, 1, 77, term, 40, ""),
        PartitionCutDone(topic_id, 0, term + 1),
        PartitionCutDone(topic_id, 1, term),
    ):
        with pytest.raises(Corruption):
            bench.state.apply(command)


def test_the_commands_have_these_bytes():
    topic_id = bytes(range(16))
    command = PartitionCut(topic_id, 0, 2, 65537, 40, "x")
    stored = (
        "87a474797065ad706172746974696f6e5f637574a8746f7069635f6964c410000102030405060708090a0b0c0d0e0f"
        "a5696e64657800a77265706c69636102a47465726dce00010001aa656e645f6f666673657428a6726561736f6ea178"
    )
    assert encode_command(command).hex() == stored
    assert decode_command(bytes.fromhex(stored)) == command
    done = PartitionCutDone(topic_id, 0, 65537)
    stored = (
        "84a474797065b2706172746974696f6e5f6375745f646f6e65a8746f7069635f6964c410000102030405060708090a0b0c0d0e0f"
        "a5696e64657800a47465726dce00010001"
    )
    assert encode_command(done).hex() == stored
    assert decode_command(bytes.fromhex(stored)) == done
