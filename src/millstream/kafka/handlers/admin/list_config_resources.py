"""ListConfigResources: the names of resources with configurations (KIP-1142).

Version 0 was ListClientMetricsResources and lists only those. From version 1 on a client names the types, or none for
all. An unknown type is UNSUPPORTED_VERSION for the whole request, as in Kafka.
"""

from collections.abc import Iterable

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.admin.config_resources import ResourceType, resource_type
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


def handle(node: Node, ctx: RequestContext, request: ListConfigResourcesRequest) -> None:
    """Answer from the metadata cache."""
    if ctx.api_version == 0:
        wanted: list[ResourceType | None] = [ResourceType.CLIENT_METRICS]
    else:
        wanted = [resource_type(number) for number in dict.fromkeys(request.resource_types)] or list(ResourceType)
    if None in wanted:
        ctx.respond(ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
        return
    resources = [
        ConfigResource(resource_name=name, resource_type=kind)
        for kind in wanted
        if kind is not None
        for name in _names(node, kind)
    ]
    ctx.respond(ListConfigResourcesResponse(config_resources=resources))


def _names(node: Node, kind: ResourceType) -> Iterable[str]:
    match kind:
        case ResourceType.TOPIC:
            return node.metadata.names()
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            return (str(node.metadata.node_id),)
        case ResourceType.CLIENT_METRICS:
            return sorted(node.metadata.state.configs.client_metrics)
        case ResourceType.GROUP:
            return sorted(node.metadata.state.configs.groups)
