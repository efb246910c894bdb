"""Decisions about configurations: set, delete, append to and subtract from properties of topics, brokers, consumer
groups and subscriptions to clients' metrics, or replace all properties of a resource.

All changes of one resource are made or none. What results is validated as a whole, so that a change that is good by
itself but contradicts another property is refused. Deleting what was not set is no error, as in Kafka.

Codes and words are Kafka's: a bad topic property is INVALID_CONFIG, a bad broker setting INVALID_REQUEST. A broker
setting that does not exist is kept and shown, as by Kafka, whose plug-ins may know it; a line in the log says that it
has no effect.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from millstream.config.client_metrics import check_client_metrics
from millstream.config.errors import ConfigError
from millstream.config.forms import TYPE_LIST
from millstream.config.group_properties import SHARE_PREFIX, STREAMS_PREFIX, group_config
from millstream.config.node_properties import NODE_PROPERTIES, node_property
from millstream.config.property import Property
from millstream.config.settings import Settings, split_listener
from millstream.config.topic_properties import TOPIC_PROPERTIES, TopicConfig, default_of
from millstream.config.topic_resolution import topic_config
from millstream.core.controller.commands import (
    CLUSTER_DEFAULT,
    SHARE_GROUPS,
    STREAMS_GROUPS,
    AnyCommand,
    ClientMetricsChanged,
    GroupConfigsChanged,
    NodeConfigsChanged,
    TopicConfigsChanged,
)
from millstream.core.controller.features import has_share_groups, has_streams_groups
from millstream.core.controller.requests import (
    AlterClientMetrics,
    AlterConfigs,
    AlterGroup,
    AlterNode,
    AlterTopic,
    AnyResource,
    ConfigChange,
    ConfigOperation,
    Result,
)
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState, merged
from millstream.core.controller.topic_names import illegal_topic_name
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

Changes = dict[str, str | None]

NOT_A_LIST: Final = "Can't {} to key {} because its type is not LIST."


def decide_alter_configs(state: ControllerState, request: AlterConfigs, rules: Rules) -> Decision:
    """Change what can be changed, resource by resource."""
    results: list[Result] = []
    commands: list[AnyCommand] = []
    node_configs = dict(state.configs.nodes)
    for resource in request.resources:
        try:
            _check_changes(resource.changes)
            match resource:
                case AlterTopic():
                    commands.extend(_altered_topic(state, resource, rules))
                case AlterNode():
                    commands.extend(_altered_node(state, node_configs, resource, rules))
                case AlterClientMetrics():
                    commands.extend(_altered_client_metrics(state, resource))
                case AlterGroup():
                    commands.extend(_altered_group(state, resource, rules))
        except Rejected as error:
            results.append(Result(error.code, error.message))
            continue
        results.append(Result())
    return Decision(tuple(results), () if request.validate_only else tuple(commands))


def effective_settings(state: ControllerState, start_settings: Settings, node: int) -> Settings:
    """The settings of ``node`` with what the state says of every broker, and over that of this one.

    Raises:
        ConfigError: this release refuses a stored value, which another release has stored.
    """
    dynamic = state.configs.nodes.get(CLUSTER_DEFAULT, {}) | state.configs.nodes.get(node, {})
    return start_settings.with_dynamic(dynamic) if dynamic else start_settings


def _check_changes(changes: tuple[ConfigChange, ...]) -> None:
    if len({change.name for change in changes}) != len(changes):
        raise Rejected("Error due to duplicate config keys", ErrorCode.INVALID_REQUEST)
    nulls = [change.name for change in changes if change.value is None and change.operation != ConfigOperation.DELETE]
    if nulls:
        raise Rejected(f"Null value not supported for : {', '.join(nulls)}", ErrorCode.INVALID_REQUEST)
    for change in changes:
        if not ConfigOperation.SET <= change.operation <= ConfigOperation.SUBTRACT:
            raise Rejected(f"Unknown operations type {change.operation}", ErrorCode.INVALID_REQUEST)


def _altered_topic(state: ControllerState, resource: AlterTopic, rules: Rules) -> Iterator[TopicConfigsChanged]:
    topic = state.topics.get(resource.name)
    before = topic.configs if topic is not None else {}

    def default(declaration: Property[Any]) -> str | None:
        return declaration.write(default_of(declaration, rules.settings))

    wanted = _wanted(resource, before, TOPIC_PROPERTIES, default, NOT_A_LIST)
    if not resource.name:
        raise Rejected("Default topic resources are not allowed.", ErrorCode.INVALID_REQUEST)
    illegal = illegal_topic_name(resource.name)
    if illegal is not None:
        raise Rejected(illegal, ErrorCode.INVALID_TOPIC_EXCEPTION)
    after = topic_config(merged(before, wanted), rules.settings)
    if topic is None:
        raise Rejected(f"The topic '{resource.name}' does not exist.", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    _check_transition(resource.name, topic_config(before, rules.settings), after)
    changes = _differing(wanted, before)
    if changes:
        yield TopicConfigsChanged(topic.topic_id, changes)


def _check_transition(name: str, before: TopicConfig, after: TopicConfig) -> None:
    """Raises Rejected for a change that is good for a new topic and not for one that has records."""
    if after.topic_kind != before.topic_kind:
        raise Rejected(
            f"topic.kind is fixed when a topic is created: {name} has other files; create another topic",
            ErrorCode.INVALID_CONFIG,
        )
    if before.is_archived and after.is_compacted:
        raise Rejected(
            f"cleanup.policy: a {before.storage_mode} topic cannot be compacted, because objects in the store are not "
            "rewritten; create another topic and copy the records",
            ErrorCode.INVALID_CONFIG,
        )
    if before.is_compacted and after.is_shared:
        raise Rejected(
            "cleanup.policy: the topic would be shared, by storage.mode.default, and a topic is shared from its "
            "creation on or never; set storage.mode=local, too",
            ErrorCode.INVALID_CONFIG,
        )
    if before.is_shared != after.is_shared:
        raise Rejected(
            "storage.mode: a topic is shared from its creation on or never; create another topic and copy the records",
            ErrorCode.INVALID_CONFIG,
        )
    if before.is_tiered and not after.is_tiered:
        raise Rejected(
            "storage.mode: a tiered topic cannot become local, because its history is in the object store; create "
            "another topic and copy the records",
            ErrorCode.INVALID_CONFIG,
        )


def _check_defaults(state: ControllerState, start: Settings, dynamic: dict[str, str], after: Settings) -> None:
    """Raises Rejected if other defaults than ``start`` with ``dynamic`` would change a topic as no change of the topic
    itself may.
    """
    try:
        before = start.with_dynamic(dynamic)
    except ConfigError:
        return  # a value of another release, which may be what is being changed
    if (before.storage_mode, before.log_cleanup_policy) == (after.storage_mode, after.log_cleanup_policy):
        return
    for topic in state.topics.values():
        try:
            known = topic_config(topic.configs, before)
        except ConfigError:
            continue  # a property of another release
        try:
            _check_transition(topic.name, known, topic_config(topic.configs, after))
        except Rejected as error:
            raise Rejected(
                f"{error.message} (the topic {topic.name} would change with the default: set its storage.mode and "
                "cleanup.policy first)",
                ErrorCode.INVALID_REQUEST,
            ) from None


def _altered_node(
    state: ControllerState, node_configs: dict[int, dict[str, str]], resource: AlterNode, rules: Rules
) -> Iterator[NodeConfigsChanged]:
    """The command, if any; ``node_configs`` is what holds before it, and then after it: what is set for a broker and
    what is set for all of them in one request must go together.
    """
    before = node_configs.get(resource.node, {})

    def default(declaration: Property[Any]) -> str | None:
        return declaration.write(rules.start_settings.value(declaration.name))

    wanted = _wanted(resource, before, NODE_PROPERTIES, default, "Config value {} is not allowed for config key: {}")
    after = merged(before, wanted)
    fixed = [name for name in wanted if name in after and _is_fixed(name)]
    if fixed:
        raise Rejected(f"Cannot update these configs dynamically: [{', '.join(fixed)}]", ErrorCode.INVALID_REQUEST)
    below = {} if resource.node == CLUSTER_DEFAULT else node_configs.get(CLUSTER_DEFAULT, {})
    above = node_configs.get(rules.node, {}) if resource.node == CLUSTER_DEFAULT else {}
    try:
        settings = rules.start_settings.with_dynamic(below | after | above)
    except ConfigError as error:
        raise Rejected(error.message, ErrorCode.INVALID_REQUEST) from None
    _check_defaults(state, rules.start_settings, below | before | above, settings)
    node_configs[resource.node] = after
    changes = _differing(wanted, before)
    if changes:
        yield NodeConfigsChanged(resource.node, changes)


def _is_fixed(name: str) -> bool:
    """Whether this is a setting, of the broker or of one of its listeners, that only a start reads."""
    try:
        _, plain = split_listener(name)
    except ConfigError:
        return False
    return plain in NODE_PROPERTIES and not NODE_PROPERTIES[plain].live


def _altered_client_metrics(state: ControllerState, resource: AlterClientMetrics) -> Iterator[ClientMetricsChanged]:
    before = state.configs.client_metrics.get(resource.name, {})
    # Lists, but not to Kafka: neither appended to nor subtracted from.
    wanted = _wanted(resource, before, {}, _no_default, NOT_A_LIST)
    if not resource.name:
        raise Rejected("Subscription name can't be empty", ErrorCode.INVALID_REQUEST)
    check_client_metrics(merged(before, wanted))
    changes = _differing(wanted, before)
    if changes:
        yield ClientMetricsChanged(resource.name, changes)


def _altered_group(state: ControllerState, resource: AlterGroup, rules: Rules) -> Iterator[GroupConfigsChanged]:
    before = state.configs.groups.get(resource.group, {})
    wanted = _wanted(resource, before, {}, _no_default, NOT_A_LIST)
    if not resource.group:
        raise Rejected("Default group resources are not allowed.", ErrorCode.INVALID_REQUEST)
    for what, prefix, level, has in (
        ("Share", SHARE_PREFIX, SHARE_GROUPS, has_share_groups),
        ("Streams", STREAMS_PREFIX, STREAMS_GROUPS, has_streams_groups),
    ):
        if any(name.startswith(prefix) for name in wanted) and not has(state.feature_level):
            raise Rejected(
                f"{what} groups need feature level {level}, the cluster has {state.feature_level}: upgrade all brokers "
                "first",
                ErrorCode.UNSUPPORTED_VERSION,
            )
    group_config(merged(before, wanted), rules.settings)
    changes = _differing(wanted, before)
    if changes:
        yield GroupConfigsChanged(resource.group, changes)


def _no_default(declaration: Property[Any]) -> None:
    _ = declaration


def _wanted(
    resource: AnyResource,
    before: Mapping[str, str],
    known: Mapping[str, Property[Any]],
    default: Callable[[Property[Any]], str | None],
    not_a_list: str,
) -> Changes:
    """The new value of each named property; None removes it."""
    wanted: Changes = dict.fromkeys(before) if resource.replace else {}
    for change in resource.changes:
        name = _canonical(change.name, known)
        if change.operation == ConfigOperation.DELETE:
            wanted[name] = None
        elif change.operation == ConfigOperation.SET:
            wanted[name] = change.value
        else:
            operation = ConfigOperation(change.operation)
            declaration = known.get(name)
            if declaration is None or declaration.form.kafka_type != TYPE_LIST:
                verb = operation.name if not_a_list is NOT_A_LIST else operation.name.lower()
                raise Rejected(not_a_list.format(verb, change.name), ErrorCode.INVALID_CONFIG)
            words = [word for word in (before.get(name) or default(declaration) or "").split(",") if word]
            for word in (change.value or "").split(","):
                if operation is ConfigOperation.APPEND and word not in words:
                    words.append(word)
                elif operation is ConfigOperation.SUBTRACT and word in words:
                    words.remove(word)
            wanted[name] = ",".join(words)
    return wanted


def _canonical(name: str, known: Mapping[str, Property[Any]]) -> str:
    """The name under which a setting is stored: an alias is stored as what it stands for."""
    if known is not NODE_PROPERTIES or name in known:
        return name
    try:
        return node_property(name).name
    except ConfigError:
        return name


def _differing(wanted: Changes, before: Mapping[str, str]) -> Changes:
    return {name: value for name, value in wanted.items() if before.get(name) != value}
