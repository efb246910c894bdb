"""DeleteTopics: delete topics by name, from version 6 on also by id. Each has its own result.

The response is sent when no shard serves the topic; its files are deleted in the background. If ``timeout_ms``
passes first, each topic is answered REQUEST_TIMED_OUT and may be deleted.
"""

from collections.abc import Sequence
from typing import Final

from millstream.core.controller.requests import Result, Results, TopicReference, throttle_ms
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.timeouts import bounded_ms
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse

_REFERENCES_FROM: Final = 6
_DISABLED_FROM: Final = 3
_STRICT_FROM: Final = 5
"""First version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def handle(node: Node, ctx: RequestContext, request: DeleteTopicsRequest) -> None:
    """Let the controller delete the topics."""
    if ctx.api_version >= _REFERENCES_FROM:
        references = tuple(TopicReference(topic.name, topic.topic_id) for topic in request.topics)
    else:
        references = tuple(TopicReference(name) for name in request.topic_names)

    if not node.metadata.settings.delete_topic_enable:
        _refuse(ctx, references)
        return

    def done(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            failure = results
            results = tuple(
                Result(failure.code, failure.message, reference.name, reference.topic_id)
                for reference in dict.fromkeys(references)
            )
        ctx.throttle(throttle_ms(results))
        ctx.respond(
            DeleteTopicsResponse(
                responses=[
                    DeletableTopicResult(
                        name=result.name,
                        topic_id=result.topic_id,
                        error_code=result.error,
                        error_message=result.message,
                    )
                    for result in results
                ]
            )
        )

    client = ctx.mutation_client(_STRICT_FROM)
    node.controller.delete_topics(references, done, timeout_ms=bounded_ms(request.timeout_ms), client=client)


def _refuse(ctx: RequestContext, references: Sequence[TopicReference]) -> None:
    """Refuse every deletion (``delete.topic.enable``). Old versions have no error code for that."""
    if ctx.api_version >= _DISABLED_FROM:
        error, message = ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled."
    else:
        error, message = ErrorCode.INVALID_REQUEST, "This version does not support topic deletion."
    results = [
        DeletableTopicResult(name=reference.name, topic_id=reference.topic_id, error_code=error, error_message=message)
        for reference in references
    ]
    ctx.respond(DeleteTopicsResponse(responses=results))
