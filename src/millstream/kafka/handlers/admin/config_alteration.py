"""Changes of configurations, shared by AlterConfigs and IncrementalAlterConfigs.

A resource that cannot be changed is refused here with Kafka's message. The others go to the controller together, which
makes all changes of one resource or none. Logger levels are not the controller's: they are set at once and lost at the
next start.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from millstream.core.controller.requests import (
    AlterClientMetrics,
    AlterGroup,
    AlterNode,
    AlterTopic,
    AnyResource,
    ConfigChange,
    Result,
    Results,
)
from millstream.errors import MillstreamError, Rejected
from millstream.kafka.context import Node
from millstream.kafka.handlers.admin.config_resources import ResourceType, broker_named, resource_type
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_configs import AlterConfigsResourceResponse

_NOT_A_NUMBER: Final = "Node id must be an integer, but it is"


class Asked(NamedTuple):
    """One resource of a request, by Kafka's type number and name, and its changes."""

    kind: int
    name: str
    changes: tuple[ConfigChange, ...]


def alter(
    node: Node,
    asked: Sequence[Asked],
    done: Callable[[list[AlterConfigsResourceResponse]], None],
    *,
    validate_only: bool,
    replace: bool,
) -> None:
    """Change the resources ``asked``, or with ``validate_only`` only check them. ``done`` gets a result for each."""
    given = Counter((each.kind, each.name) for each in asked)
    settled: dict[int, Result] = {}
    wanted: list[AnyResource] = []
    for position, each in enumerate(asked):
        try:
            if given[each.kind, each.name] > 1:
                raise Rejected("Each resource must appear at most once.", ErrorCode.INVALID_REQUEST)
            if each.kind == ResourceType.BROKER_LOGGER and not replace:
                _alter_loggers(node, each, validate_only=validate_only)
                settled[position] = Result()
            else:
                wanted.append(_wanted(node, each, replace=replace))
        except Rejected as error:
            settled[position] = Result(error.code, error.message)

    def answered(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            results = (Result(results.code, results.message),) * len(wanted)
        rest = iter(results)
        outcomes = [settled.get(position) or next(rest) for position in range(len(asked))]
        done(
            [
                AlterConfigsResourceResponse(outcome.error, outcome.message, each.kind, each.name)
                for each, outcome in zip(asked, outcomes, strict=True)
            ]
        )

    if wanted:
        node.controller.alter_configs(wanted, answered, validate_only=validate_only)
    else:
        answered(())


def _alter_loggers(node: Node, asked: Asked, *, validate_only: bool) -> None:
    if not asked.name:
        raise Rejected(f"{_NOT_A_NUMBER}: ", ErrorCode.INVALID_REQUEST)
    broker_named(asked.name, node.metadata.node_id, _NOT_A_NUMBER, "Unexpected node id. Expected {}, but received {}")
    node.loggers.alter(asked.changes, validate_only=validate_only)


def _wanted(node: Node, asked: Asked, *, replace: bool) -> AnyResource:
    """The resource in the controller's form. Rejected if it cannot be changed."""
    match resource_type(asked.kind):
        case ResourceType.TOPIC:
            return AlterTopic(asked.name, asked.changes, replace)
        case ResourceType.BROKER:
            unexpected = "Unexpected broker id, expected {}, but received {}"
            broker = broker_named(asked.name, node.metadata.node_id, _NOT_A_NUMBER, unexpected)
            return AlterNode(broker, asked.changes, replace)
        case ResourceType.CLIENT_METRICS:
            return AlterClientMetrics(asked.name, asked.changes, replace)
        case None | ResourceType.BROKER_LOGGER:
            raise Rejected(f"Unknown resource type {asked.kind}", ErrorCode.INVALID_REQUEST)
        case ResourceType.GROUP:
            return AlterGroup(asked.name, asked.changes, replace)
