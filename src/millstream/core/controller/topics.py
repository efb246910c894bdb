"""Decisions about topics: create, delete, add partitions.

The order of the checks decides which of several errors a client sees; it is Kafka's. All topics of one request are
judged against the state before it, and a name that appears twice is refused altogether, so that the outcome does not
depend on the order in which a client lists them.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeVar

from millstream.config.topic_resolution import topic_config
from millstream.core.controller.brokers import internal_factor
from millstream.core.controller.commands import (
    ASSIGNED,
    ASSIGNING_LEADERS,
    ELECTED,
    FIRST_EPOCH_0,
    PartitionsAdded,
    PartitionState,
    TopicCreated,
    TopicDeleted,
)
from millstream.core.controller.placement import Placer, Replicas, RoomRule, assignment_problem, candidates
from millstream.core.controller.requests import (
    NO_TOPIC_ID,
    AddPartitions,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    Result,
    TopicReference,
)
from millstream.core.controller.rules import PARTITIONS_MAX, TOO_MANY_PARTITIONS, Decision, Rules
from millstream.core.controller.state import ControllerState, TopicState
from millstream.core.controller.topic_names import (
    CLUSTER_METADATA,
    GROUP_METADATA,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    colliding_topic,
    illegal_topic_name,
)
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.model.events import DATA_TOPIC_SUFFIX, data_topic_name

OLDER_TERM: Final = 1
"""Leader epoch, and Raft term, of an assigned first leader in a cluster below `FIRST_EPOCH_0`."""

UNKNOWN_TOPIC = "This server does not host this topic-partition."
UNKNOWN_ID = "This server does not host this topic ID."

Named = TypeVar("Named", CreateTopic, AddPartitions)


def decide_create_topics(state: ControllerState, request: CreateTopics, rules: Rules) -> Decision:
    """Create what can be created."""
    excessive = sum(_wanted_partitions(topic, rules) for topic in request.topics) > PARTITIONS_MAX
    results: list[Result] = []
    commands: list[TopicCreated] = []
    next_group = state.next_raft_group
    placer = Placer(candidates(state), state.load, RoomRule.of(rules))
    spender = rules.spender(request.client)
    for topic, repeated in _by_name(request.topics):
        name = topic.name
        try:
            if repeated:
                raise Rejected("Duplicate topic name.", ErrorCode.INVALID_REQUEST)
            if excessive:
                raise Rejected(TOO_MANY_PARTITIONS, ErrorCode.POLICY_VIOLATION)
            created = _created(state, topic, rules, next_group, placer)
            spender.take(len(created.partitions))
        except Rejected as error:
            results.append(Result(error.code, error.message, name))
            continue
        commands.append(created)
        next_group += len(created.partitions)
        results.append(
            Result(
                name=name,
                topic_id=created.topic_id,
                partitions=len(created.partitions),
                replication_factor=len(created.partitions[0].replicas),
            )
        )
    return Decision(tuple(results), () if request.validate_only else tuple(commands)).throttled(spender)


def _by_name(topics: Iterable[Named]) -> list[tuple[Named, bool]]:
    """Each name's first mention, in order, and whether it is mentioned again."""
    first: dict[str, Named] = {}
    repeated: set[str] = set()
    for topic in topics:
        if first.setdefault(topic.name, topic) is not topic:
            repeated.add(topic.name)
    return [(topic, name in repeated) for name, topic in first.items()]


def _wanted_partitions(topic: CreateTopic, rules: Rules) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return rules.settings.num_partitions if topic.partitions == -1 else max(topic.partitions, 0)


def _created(
    state: ControllerState, topic: CreateTopic, rules: Rules, first_group: int, placer: Placer
) -> TopicCreated:
    """The command that creates ``topic``; Rejected with Kafka's code if it must not exist."""
    name = topic.name
    if name == CLUSTER_METADATA:
        raise Rejected(f"Creation of internal topic {name} is prohibited.", ErrorCode.INVALID_REQUEST)
    if name in state.topics:
        raise Rejected(f"Topic '{name}' already exists.", ErrorCode.TOPIC_ALREADY_EXISTS)
    illegal = illegal_topic_name(name)
    if illegal is not None:
        raise Rejected(illegal, ErrorCode.INVALID_TOPIC_EXCEPTION)
    other = colliding_topic(state, name)
    if other is not None:
        raise Rejected(f"Topic '{name}' collides with existing topic: {other}", ErrorCode.INVALID_TOPIC_EXCEPTION)
    configs = _configs(topic, rules)
    _check_data_name(state, name, configs)
    if topic.assignments:
        replicas = _manual_replicas(state, topic)
        placer.count(replicas)
    else:
        replicas = _placed_replicas(state, topic, rules, placer)
    if topic.topic_id in state.topics.by_id:
        raise Rejected(f"The id of topic '{name}' is that of another topic.", ErrorCode.TOPIC_ALREADY_EXISTS)
    topic_id = topic.topic_id if topic.topic_id != NO_TOPIC_ID else rules.new_topic_id()
    partitions = _partitions(state, replicas, first_group)
    return TopicCreated(name, topic_id, partitions, configs, version=_version(partitions))


def _check_data_name(state: ControllerState, name: str, configs: dict[str, str]) -> None:
    """Refuse a topic with the name of an event topic's data, and an event topic whose data have the name of a topic."""
    owner = state.topics.get(name.removesuffix(DATA_TOPIC_SUFFIX)) if name.endswith(DATA_TOPIC_SUFFIX) else None
    if owner is not None and owner.configs.get("topic.kind") == "events":
        what = f"Topic '{name}' already exists: it is the data of event topic '{owner.name}', to be read only."
        raise Rejected(what, ErrorCode.TOPIC_ALREADY_EXISTS)
    data = data_topic_name(name)
    if configs.get("topic.kind") == "events" and data in state.topics:
        what = f"Topic '{data}' exists, and the data of event topic '{name}' would have its name: choose another name."
        raise Rejected(what, ErrorCode.INVALID_TOPIC_EXCEPTION)


def _configs(topic: CreateTopic, rules: Rules) -> dict[str, str]:
    nulls = [name for name, value in topic.configs if value is None]
    if nulls:
        raise Rejected(f"Null value not supported for topic configs: {','.join(nulls)}", ErrorCode.INVALID_CONFIG)
    configs = {name: value for name, value in topic.configs if value is not None}
    topic_config(configs, rules.settings)  # raises ConfigError, a Rejected with INVALID_CONFIG
    return configs


def _placed_replicas(state: ControllerState, topic: CreateTopic, rules: Rules, placer: Placer) -> Replicas:
    """Nodes for a topic that leaves them to us."""
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise Rejected(
            "Replication factor must be larger than 0, or -1 to use the default value.",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    if topic.partitions < -1 or topic.partitions == 0:
        raise Rejected("Number of partitions was set to an invalid non-positive value.", ErrorCode.INVALID_PARTITIONS)
    settings = rules.settings
    count = settings.num_partitions if topic.partitions == -1 else topic.partitions
    factor = topic.replication_factor
    if factor == -1:
        internal = topic.name in INTERNAL_TOPICS
        factor = internal_factor(state, rules, topic.name) if internal else settings.default_replication_factor
    return placer.place(count, factor, unbounded=topic.name in INTERNAL_TOPICS)


def _manual_replicas(state: ControllerState, topic: CreateTopic) -> Replicas:
    """Nodes for a topic whose client chose them."""
    for number, what in ((topic.replication_factor, "replication factor"), (topic.partitions, "numPartitions")):
        if number != -1:
            raise Rejected(
                f"A manual partition assignment was specified, but {what} was not set to -1.",
                ErrorCode.INVALID_REQUEST,
            )
    by_index: dict[int, tuple[int, ...]] = {}
    for index, nodes in topic.assignments:
        if index in by_index:
            raise Rejected(
                f"Found multiple manual partition assignments for partition {index}",
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            )
        _check_assignment(state, nodes, len(topic.assignments[0][1]))
        by_index[index] = nodes
    if sorted(by_index) != list(range(len(by_index))):
        raise Rejected(
            "partitions should be a consecutive 0-based integer sequence", ErrorCode.INVALID_REPLICATION_ASSIGNMENT
        )
    return [by_index[index] for index in range(len(by_index))]


def _check_assignment(state: ControllerState, nodes: tuple[int, ...], factor: int) -> None:
    """Raise Rejected unless one partition may have these replicas."""
    problem = assignment_problem(nodes, [broker.node for broker in candidates(state)])
    if problem is None and len(nodes) != factor:
        problem = (
            f"includes a partition with {len(nodes)} replica(s), but this is not consistent with previous partitions, "
            f"which have {factor} replica(s)."
        )
    if problem is not None:
        raise Rejected(f"The manual partition assignment {problem}", ErrorCode.INVALID_REPLICATION_ASSIGNMENT)


def _partitions(state: ControllerState, replicas: Replicas, first_group: int) -> tuple[PartitionState, ...]:
    """New partitions. The first leader of several replicas is assigned, not elected, if all brokers know that."""
    beginning = ELECTED
    if state.feature_level >= FIRST_EPOCH_0:
        beginning = ASSIGNED
    elif state.feature_level >= ASSIGNING_LEADERS:
        beginning = OLDER_TERM
    return tuple(
        PartitionState(group, nodes, nodes[0], beginning if len(nodes) > 1 else ELECTED)
        for group, nodes in enumerate(replicas, first_group)
    )


def _version(partitions: tuple[PartitionState, ...]) -> int:
    """Version of the command that creates the partitions."""
    if any(partition.beginning == ASSIGNED for partition in partitions):
        return 2
    return int(any(partition.first_term is not None for partition in partitions))


def decide_delete_topics(state: ControllerState, request: DeleteTopics, rules: Rules) -> Decision:
    """Delete what exists; a topic that is named twice, by name or id, is not deleted by that request."""
    names = Counter(ref.name for ref in request.topics if ref.name is not None and ref.topic_id == NO_TOPIC_ID)
    ids = Counter(ref.topic_id for ref in request.topics if ref.name is None and ref.topic_id != NO_TOPIC_ID)
    spender = rules.spender(request.client)
    results: list[Result] = []
    commands: list[TopicDeleted] = []
    for reference in _distinct(request.topics):
        try:
            topic = _deletable(state, reference, names, ids)
            spender.take(len(topic.partitions))
        except Rejected as error:
            results.append(Result(error.code, error.message or None, reference.name, reference.topic_id))
            continue
        results.append(Result(name=topic.name, topic_id=topic.topic_id))
        commands.append(TopicDeleted(topic.topic_id, topic.name))
    return Decision(tuple(results), tuple(commands)).throttled(spender)


def _distinct(references: Iterable[TopicReference]) -> list[TopicReference]:
    return list({(reference.name, reference.topic_id): reference for reference in references}.values())


def _deletable(
    state: ControllerState, reference: TopicReference, names: Counter[str], ids: Counter[bytes]
) -> TopicState:
    """The topic that ``reference`` means; Rejected if it means none, or if the request means that topic twice."""
    if reference.name is None:
        if reference.topic_id == NO_TOPIC_ID:
            raise Rejected("Neither topic name nor id were specified.", ErrorCode.INVALID_REQUEST)
        if ids[reference.topic_id] > 1:
            raise Rejected("Duplicate topic id.", ErrorCode.INVALID_REQUEST)
        topic = state.topics.by_id.get(reference.topic_id)
        if topic is None:
            raise Rejected(UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        if reference.topic_id != NO_TOPIC_ID:
            raise Rejected("You may not specify both topic name and topic id.", ErrorCode.INVALID_REQUEST)
        if names[reference.name] > 1:
            raise Rejected("Duplicate topic name.", ErrorCode.INVALID_REQUEST)
        topic = state.topics.get(reference.name)
        if topic is None:
            raise Rejected(UNKNOWN_TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if names[topic.name] and ids[topic.topic_id]:
        raise Rejected("The provided topic name maps to an ID that was already supplied.", ErrorCode.INVALID_REQUEST)
    return topic


def decide_create_partitions(state: ControllerState, request: CreatePartitions, rules: Rules) -> Decision:
    """Give topics the partitions that they lack."""
    spender = rules.spender(request.client)
    results: list[Result] = []
    commands: list[PartitionsAdded] = []
    next_group = state.next_raft_group
    room = PARTITIONS_MAX
    placer = Placer(candidates(state), state.load, RoomRule.of(rules))
    for asked, repeated in _by_name(request.topics):
        name = asked.name
        try:
            if repeated:
                raise Rejected("Duplicate topic name.", ErrorCode.INVALID_REQUEST)
            added = _added(state, asked, next_group, room, placer)
            spender.take(len(added.partitions))
        except Rejected as error:
            results.append(Result(error.code, error.message or None, name))
            continue
        commands.append(added)
        next_group += len(added.partitions)
        room -= len(added.partitions)
        results.append(Result(name=name))
    return Decision(tuple(results), () if request.validate_only else tuple(commands)).throttled(spender)


_FOUND_BY: Final = {
    GROUP_METADATA: "group finds its offsets",
    TRANSACTION_STATE: "transactional id finds its coordinator",
    SHARE_GROUP_STATE: "share partition finds its coordinator",
}
"""What finds its partition of a topic by the number of partitions."""


def _added(
    state: ControllerState, asked: AddPartitions, first_group: int, room: int, placer: Placer
) -> PartitionsAdded:
    """The command that adds the missing partitions; Rejected with Kafka's code if they must not be."""
    topic = state.topics.get(asked.name)
    if topic is None:
        raise Rejected("", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    what = _FOUND_BY.get(asked.name)
    if what is not None:
        raise Rejected(
            f"The number of partitions of {asked.name} cannot be changed: by it each {what}.",
            ErrorCode.INVALID_PARTITIONS,
        )
    have = len(topic.partitions)
    if asked.count == have:
        raise Rejected(f"Topic already has {have} partition(s).", ErrorCode.INVALID_PARTITIONS)
    if asked.count < have:
        raise Rejected(
            f"The topic {asked.name} currently has {have} partition(s); {asked.count} would not be an increase.",
            ErrorCode.INVALID_PARTITIONS,
        )
    missing = asked.count - have
    if missing > room:
        raise Rejected(TOO_MANY_PARTITIONS, ErrorCode.POLICY_VIOLATION)
    factor = len(topic.partitions[0].replicas)
    if asked.assignments is None:
        replicas = placer.place(missing, factor)
    else:
        if len(asked.assignments) != missing:
            raise Rejected(
                f"Attempted to add {missing} additional partition(s), but only {len(asked.assignments)} assignment(s) "
                "were specified.",
                ErrorCode.INVALID_REPLICATION_ASSIGNMENT,
            )
        for nodes in asked.assignments:
            _check_assignment(state, nodes, factor)
        replicas = asked.assignments
        placer.count(replicas)
    partitions = _partitions(state, replicas, first_group)
    return PartitionsAdded(topic.topic_id, have, partitions, version=_version(partitions))
