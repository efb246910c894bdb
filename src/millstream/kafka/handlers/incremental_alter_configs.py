"""IncrementalAlterConfigs: change single properties of topics and brokers, leaving the others alone (KIP-339).

All changes of one resource are made or none; resources are answered in the order of the request. Of a broker's settings
those that are live can be changed, for this broker by its id or for every broker by the empty name; they outlive a
restart.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from millstream.core.controller.requests import AlterNode, AlterTopic, ConfigChange, Result, Results
from millstream.errors import MillstreamError, Rejected
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.config_resources import ResourceType, broker_named, not_served, resource_type
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

API_KEY: Final = 44
_NOT_A_NUMBER: Final = "Node id must be an integer, but it is"

Resource = AlterTopic | AlterNode


def handle(
    node: Node,
    ctx: RequestContext,
    request: IncrementalAlterConfigsRequest,
    respond: Callable[[IncrementalAlterConfigsResponse], None],
) -> None:
    """Have the controller change what can be changed."""
    _ = ctx
    given = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    refused: dict[int, Result] = {}
    wanted: list[Resource] = []
    for position, resource in enumerate(request.resources):
        try:
            if given[resource.resource_type, resource.resource_name] > 1:
                raise Rejected("Each resource must appear at most once.", ErrorCode.INVALID_REQUEST)
            wanted.append(_wanted(node, resource))
        except Rejected as error:
            refused[position] = Result(error.code, error.message)

    def done(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            results = (Result(results.code, results.message),) * len(wanted)
        rest = iter(results)
        respond(
            IncrementalAlterConfigsResponse(
                responses=[
                    _answer(resource, refused.get(position) or next(rest))
                    for position, resource in enumerate(request.resources)
                ]
            )
        )

    if wanted:
        node.controller.alter_configs(wanted, done, validate_only=request.validate_only)
    else:
        done(())


def _wanted(node: Node, resource: AlterConfigsResource) -> Resource:
    """The resource as the controller knows it; Rejected if it cannot be changed at all."""
    changes = tuple(ConfigChange(change.name, change.config_operation, change.value) for change in resource.configs)
    name = resource.resource_name
    node_id = node.metadata.node_id
    match resource_type(resource.resource_type):
        case ResourceType.TOPIC:
            return AlterTopic(name, changes)
        case ResourceType.BROKER:
            unexpected = "Unexpected broker id, expected {}, but received {}"
            return AlterNode(broker_named(name, node_id, _NOT_A_NUMBER, unexpected), changes)
        case ResourceType.BROKER_LOGGER:
            if not name:
                raise Rejected(f"{_NOT_A_NUMBER}: ", ErrorCode.INVALID_REQUEST)
            broker_named(name, node_id, _NOT_A_NUMBER, "Unexpected node id. Expected {}, but received {}")
            raise Rejected(
                "Loggers have no levels of their own; the broker's is its setting logging.level.",
                ErrorCode.INVALID_REQUEST,
            )
        case None:
            raise Rejected(f"Unknown resource type {resource.resource_type}", ErrorCode.INVALID_REQUEST)
        case kind:
            raise not_served(kind)


def _answer(resource: AlterConfigsResource, result: Result) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=result.error,
        error_message=result.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
