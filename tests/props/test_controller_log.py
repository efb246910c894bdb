"""Whatever is asked of a controller, its state is a function of its log, however that log is read."""

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.settings import Settings
from millstream.core.controller.commands import AnyCommand, ClusterCreated, decode_command, encode_command
from millstream.core.controller.configs import effective_settings
from millstream.core.controller.decide import decide
from millstream.core.controller.load import Load
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.requests import (
    AddPartitions,
    AllocateProducerIds,
    AlterClientMetrics,
    AlterConfigs,
    AlterGroup,
    AlterNode,
    AlterTopic,
    AnyRequest,
    ConfigChange,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    FenceBroker,
    RegisterBroker,
    TopicReference,
    UnfenceBroker,
    decode_request,
    encode_request,
)
from millstream.core.controller.rules import Rules
from millstream.core.controller.state import ControllerState, collision_key, decode_state, encode_state
from millstream.model.error_code import ErrorCode

NAMES = st.sampled_from(["a", "b", "c.d", "c_d", "e_f", "", "bad name"])
IDS = st.integers(0, 12).map(lambda n: n.to_bytes(16, "big"))
CHANGES = st.lists(
    st.builds(
        ConfigChange,
        st.sampled_from(
            [
                "retention.ms",
                "cleanup.policy",
                "segment.ms",
                "log.retention.ms",
                "log.cleanup.policy",
                "metrics",
                "interval.ms",
                "consumer.session.timeout.ms",
                "consumer.heartbeat.interval.ms",
                "x",
            ]
        ),
        st.integers(0, 4),
        st.sampled_from([None, "1000", "50000", "6000", "compact", "delete", "delete,compact", ""]),
    ),
    max_size=3,
).map(tuple)
CONFIGS = st.lists(
    st.tuples(st.sampled_from(["retention.ms", "segment.ms", "x"]), st.sampled_from(["1000", "a"])), max_size=2
).map(tuple)
NODES = st.sampled_from([1, 1, 1, 2, 3])
DISKS = st.integers(1, 4).map(lambda n: n.to_bytes(16, "big"))
LEVELS = st.sampled_from([0, 1, 1, 1])


def profile(level: int) -> BrokerProfile:
    return BrokerProfile((ListenerAddress("PLAINTEXT", "h", 9092),), PeerAddress("h", 33145), "", 1, "0", level)


REQUESTS: st.SearchStrategy[AnyRequest] = st.one_of(
    st.builds(
        CreateTopics,
        st.lists(
            st.builds(CreateTopic, NAMES, st.integers(-2, 4), st.integers(-2, 2), st.just(()), CONFIGS), max_size=3
        ).map(tuple),
        st.booleans(),
    ),
    st.builds(
        DeleteTopics,
        st.lists(
            st.builds(TopicReference, NAMES, st.just(bytes(16))) | st.builds(TopicReference, st.none(), IDS), max_size=3
        ).map(tuple),
    ),
    st.builds(
        CreatePartitions,
        st.lists(st.builds(AddPartitions, NAMES, st.integers(0, 6)), max_size=2).map(tuple),
        st.booleans(),
    ),
    st.builds(
        AlterConfigs,
        st.lists(
            st.builds(AlterTopic, NAMES, CHANGES, st.booleans())
            | st.builds(AlterNode, st.sampled_from([-1, 1]), CHANGES, st.booleans())
            | st.builds(AlterGroup, NAMES, CHANGES, st.booleans())
            | st.builds(AlterClientMetrics, NAMES, CHANGES, st.booleans()),
            max_size=3,
        ).map(tuple),
        st.booleans(),
    ),
    st.builds(AllocateProducerIds, st.integers(-1, 2000)),
    st.builds(RegisterBroker, st.sampled_from(["", "x", "y"]), NODES, DISKS, st.builds(profile, LEVELS), st.booleans()),
    st.builds(FenceBroker, NODES, st.integers(0, 40)),
    st.builds(UnfenceBroker, NODES, st.integers(0, 40)),
)


def counting_ids() -> Callable[[], bytes]:
    numbers = iter(range(1, 1_000_000))
    return lambda: next(numbers).to_bytes(16, "big")


def run(requests: list[AnyRequest]) -> list[AnyCommand]:
    """The log of a controller that is asked ``requests``."""
    start: Any = Settings(data_dir="/unused", shards=1, node_id=1)
    rules = Rules(1, start, start, counting_ids())
    state = ControllerState()
    log: list[AnyCommand] = [ClusterCreated("x", 1)]
    state.apply(log[0])
    for request in requests:
        before = encode_state(state)
        decision = decide(state, decode_request(encode_request(request)), rules)
        assert encode_state(state) == before, "deciding changed the state"
        for command in decision.commands:
            state.apply(command)
        log.extend(decision.commands)
        rules = msgspec.structs.replace(rules, settings=effective_settings(state, start, 1))
    return log


def replay(log: list[AnyCommand]) -> ControllerState:
    state = ControllerState()
    for command in log:
        state.apply(decode_command(encode_command(command)))
    return state


@given(st.lists(REQUESTS, max_size=25), st.data())
def test_snapshot_and_rest_of_the_log_give_the_state_of_the_whole_log(requests, data):
    log = run(requests)
    whole = replay(log)
    cut = data.draw(st.integers(0, len(log)))
    state = decode_state(encode_state(replay(log[:cut])))
    for command in log[cut:]:
        state.apply(command)
    assert encode_state(state) == encode_state(whole)
    assert state.topics.colliding == whole.topics.colliding
    assert state.revision == len(log)


@given(st.lists(REQUESTS, max_size=25))
def test_the_state_keeps_its_promises_under_any_requests(requests):
    log = run(requests)
    groups: set[int] = set()
    ids: set[bytes] = set()
    state = ControllerState()
    for command in log:
        state.apply(command)
        for added in getattr(command, "partitions", ()):
            assert added.raft_group not in groups, "a Raft group was used twice"
            groups.add(added.raft_group)
        if type(command).__name__ == "TopicCreated":
            assert command.topic_id not in ids, "a topic id was used twice"
            ids.add(command.topic_id)
        assert {t.topic_id: t for t in state.topics.values()} == state.topics.by_id
        keys = [collision_key(name) for name in state.topics if "." in name or "_" in name]
        assert sorted(keys) == sorted(key for key, names in state.topics.colliding.items() for _ in names)
        assert all(topic.partitions for topic in state.topics.values())
        load = Load()
        for topic in state.topics.values():
            load.add(topic.partitions)
        assert (load.replicas, load.leaders) == (state.load.replicas, state.load.leaders)
        brokers = state.registry.brokers
        disks = [broker.incarnation for broker in brokers.values()]
        assert len(set(disks)) == len(disks)
        assert not state.registry.retired.keys() & disks
        assert all(broker.profile.feature_level >= state.feature_level for broker in brokers.values())
        assert all(node in brokers or node == 1 for node in load.replicas)


@given(st.lists(REQUESTS, max_size=15))
def test_commands_are_exactly_what_was_answered_as_done(requests):
    start: Any = Settings(data_dir="/unused", shards=1, node_id=1)
    rules = Rules(1, start, start, counting_ids())
    state = ControllerState()
    state.apply(ClusterCreated("x", 1))
    for request in requests:
        decision = decide(state, request, rules)
        good = [result for result in decision.results if result.error == ErrorCode.NONE]
        if getattr(request, "validate_only", False):
            assert not decision.commands
        elif isinstance(request, AlterConfigs):
            assert len(decision.commands) <= len(good)
            assert len(decision.results) == len(request.resources)
        elif isinstance(request, RegisterBroker | FenceBroker | UnfenceBroker):
            assert len(decision.results) == 1
            assert good or not decision.commands
        else:
            assert len(decision.commands) == len(good)
        for command in decision.commands:
            state.apply(command)
        if isinstance(request, CreateTopics) and not request.validate_only:
            assert all(state.topics[result.name].topic_id == result.topic_id for result in good)
        elif isinstance(request, DeleteTopics):
            assert not any(result.topic_id in state.topics.by_id for result in good)
        assert all(
            (result.message is None) == (result.error == ErrorCode.NONE) or result.error == 3
            for result in decision.results
        )
