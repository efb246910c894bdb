"""Applying commands, refusing those that contradict the state, and the snapshot."""

import pytest

from millstream.core.controller.commands import (
    ClientMetricsChanged,
    ClusterCreated,
    GroupConfigsChanged,
    NodeConfigsChanged,
    PartitionsAdded,
    PartitionState,
    ProducerIdsAllocated,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
    decode_command,
    encode_command,
)
from millstream.core.controller.decide import decide
from millstream.core.controller.requests import AllocateProducerIds, CreateCluster, DeleteTopics, TopicReference
from millstream.core.controller.state import ControllerState, decode_state, encode_state
from millstream.errors import Corruption
from millstream.model.error_code import ErrorCode

ID = bytes(range(16))
ONE = (PartitionState(1, (1,), 1),)


@pytest.mark.parametrize(
    "command",
    [
        ClusterCreated("abc", 3),
        TopicCreated("t", ID, (PartitionState(1, (1, 2), 1, 4), PartitionState(2, (2, 1), 2)), {"retention.ms": "5"}),
        TopicDeleted(ID, "t"),
        PartitionsAdded(ID, 2, (PartitionState(9, (1,), 1),)),
        TopicConfigsChanged(ID, {"retention.ms": None, "segment.ms": "7"}),
        NodeConfigsChanged(-1, {"log.retention.ms": "5"}),
        ClientMetricsChanged("s", {"metrics": "a.", "match": None}),
        GroupConfigsChanged("g", {"consumer.session.timeout.ms": "50000"}),
        ProducerIdsAllocated(1000, 1000, 1),
    ],
)
def test_a_command_survives_its_record(command):
    assert decode_command(encode_command(command)) == command


def test_the_stored_form_of_commands_is_what_earlier_releases_wrote():
    """Golden bytes: a log that exists must stay readable."""
    data = encode_command(TopicCreated("t", ID, (PartitionState(7, (1,), 1),), {"a": "b"}))
    assert data.hex() == (
        "85a474797065ad746f7069635f63726561746564a46e616d65a174a8746f7069635f6964c410"
        "000102030405060708090a0b0c0d0e0f"
        "aa706172746974696f6e7391940791010100a7636f6e6669677381a161a162"
    )
    data = encode_command(GroupConfigsChanged("g", {"a": "b", "c": None}))
    assert data.hex() == (
        "83a474797065b567726f75705f636f6e666967735f6368616e676564a567726f7570a167a76368616e67657382a161a162a163c0"
    )
    data = encode_command(ClientMetricsChanged("s", {"a": "b"}))
    assert data.hex() == (
        "83a474797065b6636c69656e745f6d6574726963735f6368616e676564a46e616d65a173a76368616e67657381a161a162"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        b"\x81\xa4type\xa4what",
        b"\x81\xa4type\xaftopic_deletedxx",
        b"\xff" * 9,
        b"\x81\xa4type\xa2\xff\xfe",
        b"\x81\xa1x" + b"\x91" * 5000,
    ],
    ids=["nothing", "null", "unknown", "short", "noise", "no text", "deep"],
)
def test_bytes_that_are_no_command_are_corruption(data):
    with pytest.raises(Corruption):
        decode_command(data)


def created():
    state = ControllerState()
    state.apply(ClusterCreated("abc", 1))
    state.apply(TopicCreated("t", ID, ONE, {}))
    return state


@pytest.mark.parametrize(
    "command",
    [
        ClusterCreated("def", 1),
        TopicCreated("t", b"x" * 16, (PartitionState(2, (1,), 1),), {}),
        TopicCreated("u", ID, (PartitionState(2, (1,), 1),), {}),
        TopicCreated("u", b"x" * 16, ONE, {}),
        TopicCreated("u", b"x" * 16, (), {}),
        TopicDeleted(b"x" * 16, "u"),
        PartitionsAdded(ID, 2, (PartitionState(2, (1,), 1),)),
        PartitionsAdded(ID, 1, ()),
        TopicConfigsChanged(b"x" * 16, {"a": "b"}),
        ProducerIdsAllocated(0, 0, 1),
    ],
)
def test_a_command_that_contradicts_the_state_is_corruption_and_changes_nothing(command):
    state = created()
    before = encode_state(state)
    with pytest.raises(Corruption):
        state.apply(command)
    assert encode_state(state) == before


def test_the_revision_counts_commands_and_a_topic_knows_its_last_change():
    state = created()
    assert (state.revision, state.topics["t"].revision) == (2, 2)
    state.apply(NodeConfigsChanged(1, {"log.retention.ms": "5"}))
    state.apply(TopicConfigsChanged(ID, {"retention.ms": "5"}))
    assert (state.revision, state.topics["t"].revision) == (4, 4)


def test_producer_ids_are_never_given_twice(bench):
    firsts = [bench.do(AllocateProducerIds(1000))[0].first_producer_id for _ in range(3)]
    assert firsts == [0, 1000, 2000]
    restored = decode_state(encode_state(bench.state))
    assert decide(restored, AllocateProducerIds(1000), bench.rules).results[0].first_producer_id == 3000
    with pytest.raises(Corruption):
        bench.state.apply(ProducerIdsAllocated(2999, 10, 1))


@pytest.mark.parametrize("count", [0, -5, 2**63])
def test_a_block_of_producer_ids_that_cannot_be_is_refused(bench, count):
    assert bench.do(AllocateProducerIds(count))[0].error == ErrorCode.INVALID_REQUEST
    assert bench.state.next_producer_id == 0


def test_a_cluster_is_created_once(bench):
    assert not bench.decide(CreateCluster("other")).commands
    assert bench.state.cluster_id == "MkU3OEVBNTcwNTJENDM2Qk"


def test_a_raft_group_is_found_with_its_partition_and_gone_with_its_topic(bench):
    bench.create("a", "b")
    topic, index = bench.state.groups()[2]
    assert (topic.name, index) == ("b", 0)
    bench.do(DeleteTopics((TopicReference("b"),)))
    assert list(bench.state.groups()) == [1]


def test_a_snapshot_of_a_later_release_or_a_broken_one_is_corruption():
    data = encode_state(created())
    later = data.replace(b"\xa7version\x01", b"\xa7version\x06")
    assert later != data
    no_text = data.replace(b"abc", b"a\xffc")
    assert no_text != data
    for bad in (later, data[:-1], b"", b"\x00", no_text, b"\x81\xa1x" + b"\x91" * 5000):
        with pytest.raises(Corruption):
            decode_state(bad)
