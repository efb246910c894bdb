"""The controller's log and snapshot, byte by byte: what exists on disks must stay readable."""

import pytest

from millstream.core.controller.commands import (
    FEATURE_LEVEL,
    AnyCommand,
    BrokerFenced,
    BrokerRegistered,
    BrokerReplaced,
    BrokerUnfenced,
    ClusterCreated,
    FeatureLevelRaised,
    PartitionState,
    ProducerIdsAllocated,
    ReplicaChange,
    ReplicasChanged,
    TopicCreated,
    decode_command,
    encode_command,
)
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.state import ControllerState, decode_state, encode_state
from millstream.errors import Corruption
from millstream.model.cluster import BrokerEpoch, FeatureLevel, Incarnation, NodeId

TOPIC_ID = bytes(range(16))
DISK = Incarnation(bytes(range(16, 32)))
OTHER_DISK = Incarnation(bytes(range(32, 48)))
PROFILE = BrokerProfile(
    (ListenerAddress("PLAINTEXT", "h", 9092),), PeerAddress("h", 33145), "r", 2, "0.1.0", FeatureLevel(1)
)

PROFILE_BYTES = (
    "a770726f66696c65" + "86"
    "a96c697374656e657273" + "9193a9504c41494e54455854a168cd2384"
    "a470656572" + "92a168cd8179"
    "a47261636b" + "a172"
    "a6736861726473" + "02"
    "a772656c65617365" + "a5302e312e30"
    "ad666561747572655f6c6576656c" + "01"
)
COMMANDS: list[tuple[AnyCommand, str]] = [
    (FeatureLevelRaised(FeatureLevel(1)), "82a474797065b4666561747572655f6c6576656c5f726169736564a56c6576656c01"),
    (
        BrokerRegistered(NodeId(1), DISK, PROFILE),
        "84a474797065b162726f6b65725f72656769737465726564"
        "a46e6f646501"
        "ab696e6361726e6174696f6ec410101112131415161718191a1b1c1d1e1f" + PROFILE_BYTES,
    ),
    (
        BrokerReplaced(NodeId(2), OTHER_DISK, DISK, PROFILE),
        "85a474797065af62726f6b65725f7265706c61636564"
        "a46e6f646502"
        "a870726576696f7573c410202122232425262728292a2b2c2d2e2f"
        "ab696e6361726e6174696f6ec410101112131415161718191a1b1c1d1e1f" + PROFILE_BYTES,
    ),
    (BrokerFenced(NodeId(2), BrokerEpoch(7)), "83a474797065ad62726f6b65725f66656e636564a46e6f646502a565706f636807"),
    (
        BrokerUnfenced(NodeId(2), BrokerEpoch(7)),
        "83a474797065af62726f6b65725f756e66656e636564a46e6f646502a565706f636807",
    ),
    (
        ReplicasChanged(TOPIC_ID, (ReplicaChange(0, (1, 2)),)),
        (
            "83a474797065b07265706c696361735f6368616e676564"
            "a8746f7069635f6964c410000102030405060708090a0b0c0d0e0f"
            "a76368616e676573919200920102"
        ),
    ),
]

LEVEL_0_SNAPSHOT = (
    "88a776657273696f6e01a87265766973696f6e03aa636c75737465725f6964a3616263aa66697273745f6e6f646501"
    "af6e6578745f726166745f67726f757002b06e6578745f70726f64756365725f6964cd03e8a6746f706963739185a46e616d65a174"
    "a8746f7069635f6964c410000102030405060708090a0b0c0d0e0faa706172746974696f6e7391940191010100"
    "a7636f6e6669677381a161a162a87265766973696f6e02ac6e6f64655f636f6e6669677380"
)
"""Written by the release before brokers were registered."""


@pytest.mark.parametrize(("command", "stored"), COMMANDS, ids=lambda value: type(value).__name__)
def test_a_command_about_brokers_has_these_bytes(command, stored):
    assert encode_command(command).hex() == stored
    assert decode_command(bytes.fromhex(stored)) == command


def test_the_snapshot_of_a_single_node_opens_and_is_written_as_before():
    state = decode_state(bytes.fromhex(LEVEL_0_SNAPSHOT))
    assert (state.cluster_id, state.first_node, state.revision, state.feature_level) == ("abc", 1, 3, 0)
    assert state.topics["t"].partitions == (PartitionState(1, (1,), 1),)
    assert state.load.replicas == {1: 1}
    assert encode_state(state).hex() == LEVEL_0_SNAPSHOT

    same = ControllerState()
    same.apply(ClusterCreated("abc", 1))
    same.apply(TopicCreated("t", TOPIC_ID, (PartitionState(1, (1,), 1),), {"a": "b"}))
    same.apply(ProducerIdsAllocated(0, 1000, 1))
    assert same == state


def test_the_snapshot_of_many_brokers_has_another_version_and_these_fields():
    state = decode_state(bytes.fromhex(LEVEL_0_SNAPSHOT))
    state.apply(FeatureLevelRaised(FeatureLevel(1)))
    state.apply(BrokerRegistered(NodeId(1), OTHER_DISK, PROFILE))
    state.apply(BrokerReplaced(NodeId(1), OTHER_DISK, DISK, PROFILE))
    data = encode_state(state).hex()
    before = LEVEL_0_SNAPSHOT.replace(
        "88a776657273696f6e01a87265766973696f6e03", "8ba776657273696f6e02a87265766973696f6e06"
    )
    assert data == before + (
        "ad666561747572655f6c6576656c01"
        "a762726f6b6572739186a46e6f646501ab696e6361726e6174696f6ec410101112131415161718191a1b1c1d1e1f"
        "ab7265706c6163656d656e7401a565706f636806" + PROFILE_BYTES + "a666656e636564c3"
        "a77265746972656481c410202122232425262728292a2b2c2d2e2f01"
    )
    assert decode_state(bytes.fromhex(data)) == state


def test_a_later_version_of_a_command_and_a_later_feature_level_are_refused_in_words():
    stored = encode_command(BrokerFenced(NodeId(2), BrokerEpoch(7), version=1))
    assert stored.startswith(b"\x84\xa4type")
    with pytest.raises(Corruption, match="version 1 of broker_fenced; this release knows versions up to 0"):
        decode_command(stored)
    with pytest.raises(Corruption, match="version -1"):
        decode_command(stored.replace(b"version\x01", b"version\xff"))
    state = decode_state(bytes.fromhex(LEVEL_0_SNAPSHOT))
    newer = FeatureLevel(FEATURE_LEVEL + 1)
    words = f"feature level {newer}, this release knows {FEATURE_LEVEL}: start a newer release"
    with pytest.raises(Corruption, match=words):
        state.apply(FeatureLevelRaised(newer))
    state.apply(FeatureLevelRaised(FeatureLevel(1)))
    later = encode_state(state).replace(b"feature_level\x01", b"feature_level" + bytes([newer]))
    with pytest.raises(Corruption, match=words):
        decode_state(later)
