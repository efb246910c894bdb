"""DescribeConfigs: properties of topics and brokers with value, source and synonyms.

Beside its settings a broker shows read-only facts, among them ``millstream.http.endpoint``, by which readers find its
HTTP port. The broker resource with an empty name shows the live changes of every broker. A broker has one logger,
``root`` (``kafka.loggers``).

Each resource has its own result, but an unknown resource type refuses the whole request, as in Kafka. Many resources
are described in the background (``kafka.slices``).
"""

from collections.abc import Iterable
from typing import Final

from millstream.config.describe import (
    SOURCE_DEFAULT,
    ConfigEntry,
    describe_client_metrics,
    describe_group,
    describe_node,
)
from millstream.core.controller.commands import CLUSTER_DEFAULT
from millstream.core.controller.topic_names import illegal_topic_name
from millstream.errors import Rejected
from millstream.kafka.cluster_view import facts
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.admin.config_entries import (
    SOURCE_DYNAMIC_DEFAULT,
    attributed,
    of_every_broker,
    strangers,
    topic_entries,
)
from millstream.kafka.handlers.admin.config_resources import ResourceType, broker_named, resource_type
from millstream.kafka.slices import answer_in_slices
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

_SOURCE_LOGGER: Final = 6
_WHEN_SET: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Shown by Kafka only if they are set: its tools take what is shown for a throttle in force."""
_NOT_A_NUMBER: Final = "Broker id must be an integer, but it is"


def handle(node: Node, ctx: RequestContext, request: DescribeConfigsRequest) -> None:
    """Answer from the metadata cache and the declarations."""
    wrong = [resource for resource in request.resources if resource_type(resource.resource_type) is None]
    if wrong:
        number, name = wrong[0].resource_type, wrong[0].resource_name
        error = Rejected(f"Unexpected resource type {number} for resource {name}", ErrorCode.INVALID_REQUEST)
        ctx.respond(DescribeConfigsResponse(results=[_refused(resource, error) for resource in request.resources]))
        return
    described = (_described(node, ctx, request, resource) for resource in request.resources)
    answer_in_slices(ctx, lambda results: DescribeConfigsResponse(results=results), described, len(request.resources))


def _described(
    node: Node, ctx: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    try:
        entries = _entries(node, ctx, resource)
    except Rejected as error:
        return _refused(resource, error)
    wanted = set(resource.configuration_keys or ())
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_shown(entry, request) for entry in entries if not wanted or entry.name in wanted],
    )


def _refused(resource: DescribeConfigsResource, error: Rejected) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _entries(node: Node, ctx: RequestContext, resource: DescribeConfigsResource) -> Iterable[ConfigEntry]:
    """The entries of one resource. Rejected if it cannot be described."""
    kind = ResourceType(resource.resource_type)
    name = resource.resource_name
    match kind:
        case ResourceType.TOPIC:
            return _topic_entries(node, name)
        case ResourceType.BROKER:
            return _broker_entries(node, ctx, name)
        case ResourceType.BROKER_LOGGER:
            if not name:
                raise Rejected("Broker id must not be empty", ErrorCode.INVALID_REQUEST)
            broker_named(
                name, node.metadata.node_id, _NOT_A_NUMBER, "Unexpected broker id, expected {} but received {}"
            )
            return [
                ConfigEntry(logger, level, False, _SOURCE_LOGGER, False, 0, "", ())
                for logger, level in node.loggers.levels().items()
            ]
        case ResourceType.CLIENT_METRICS:
            if not name:
                raise Rejected("Client metrics subscription name must not be empty", ErrorCode.INVALID_REQUEST)
            return describe_client_metrics(node.metadata.state.configs.client_metrics.get(name, {}))
        case ResourceType.GROUP:
            if not name:
                raise Rejected("Group name must not be empty", ErrorCode.INVALID_REQUEST)
            metadata = node.metadata
            entries = describe_group(metadata.state.configs.groups.get(name, {}), metadata.settings)
            return [attributed(node, entry) for entry in entries]


def _topic_entries(node: Node, name: str) -> Iterable[ConfigEntry]:
    illegal = illegal_topic_name(name)
    if illegal is not None:
        raise Rejected(illegal, ErrorCode.INVALID_TOPIC_EXCEPTION)
    topic = node.metadata.topic(name)
    if topic is None:
        raise Rejected("", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic_entries(node, topic.configs, as_read=True)


def _broker_entries(node: Node, ctx: RequestContext, name: str) -> Iterable[ConfigEntry]:
    metadata = node.metadata
    unexpected = "Unexpected broker id, expected {} or empty string, but received {}"
    broker = broker_named(name, metadata.node_id, _NOT_A_NUMBER, unexpected)
    entries = [attributed(node, entry) for entry in describe_node(metadata.settings, facts(node, ctx))]
    entries = [entry for entry in entries if entry.source != SOURCE_DEFAULT or entry.name not in _WHEN_SET]
    entries += strangers(node)
    if broker != CLUSTER_DEFAULT:
        return entries
    return [entry.given_by(SOURCE_DYNAMIC_DEFAULT) for entry in entries if entry.name in of_every_broker(node)]


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in synonyms],
        config_type=entry.kafka_type,
        documentation=entry.documentation if request.include_documentation else None,
    )
