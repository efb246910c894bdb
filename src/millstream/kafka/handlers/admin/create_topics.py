"""CreateTopics: create topics. Each has its own result, from version 5 on with its properties.

The response is sent when every shard has opened the new partitions, so a producer may start at once. If ``timeout_ms``
passes first, each topic is answered REQUEST_TIMED_OUT: it may exist, and a retry then gets TOPIC_ALREADY_EXISTS. The
properties of many topics are described in the background (``kafka.slices``).
"""

from typing import Final

from millstream.core.controller.requests import CreateTopic, Result, Results, throttle_ms
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.admin.config_entries import topic_entries
from millstream.kafka.slices import answer_in_slices
from millstream.kafka.timeouts import bounded_ms
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_CONFIGS_FROM: Final = 5
_STRICT_FROM: Final = 6
"""First version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def handle(node: Node, ctx: RequestContext, request: CreateTopicsRequest) -> None:
    """Let the controller create the topics."""
    by_name = {topic.name: topic for topic in request.topics}

    def done(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            results = tuple(Result(results.code, results.message, name) for name in by_name)
        ctx.throttle(throttle_ms(results))
        described = ctx.api_version >= _CONFIGS_FROM
        topics = (_result(node, by_name[result.name or ""], result, described=described) for result in results)
        if described:
            answer_in_slices(ctx, lambda some: CreateTopicsResponse(topics=some), topics, len(results))
        else:
            ctx.respond(CreateTopicsResponse(topics=list(topics)))

    node.controller.create_topics(
        (_wanted(topic) for topic in request.topics),
        done,
        timeout_ms=bounded_ms(request.timeout_ms),
        validate_only=request.validate_only,
        client=ctx.mutation_client(_STRICT_FROM),
    )


def _wanted(topic: CreatableTopic) -> CreateTopic:
    return CreateTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple((each.partition_index, tuple(each.broker_ids)) for each in topic.assignments),
        tuple((config.name, config.value) for config in topic.configs),
    )


def _result(node: Node, topic: CreatableTopic, result: Result, *, described: bool) -> CreatableTopicResult:
    if result.error != ErrorCode.NONE:
        return CreatableTopicResult(name=topic.name, error_code=result.error, error_message=result.message)
    overrides = {config.name: config.value or "" for config in topic.configs}
    entries = topic_entries(node, overrides) if described else ()
    return CreatableTopicResult(
        name=topic.name,
        topic_id=result.topic_id,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=[
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in entries
        ],
    )
