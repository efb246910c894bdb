"""Rights of the APIs of event topics."""

from typing import Any

from millstream.kafka.authorize.shared import (
    C31,
    CLUSTER,
    G30,
    GROUP,
    T29,
    TOPIC,
    Op,
    kept,
    refusal,
    split,
    with_errors,
)
from millstream.kafka.rights import MESSAGES, Asker, Passed, guard, right
from millstream.model.access import Operation
from millstream.model.quantities import ApiKey
from millstream.wire.messages import acknowledge_events, events_metadata
from millstream.wire.schema import Response


def _of_event_topic(key: ApiKey, operation: Operation) -> None:
    @guard(key, right(TOPIC, operation))
    def ask(asker: Asker, request: Any) -> Passed | Response:
        return Passed(request) if asker.topic_of_id(operation, request.topic_id) else refusal(key, T29)


_of_event_topic(15100, Op.WRITE)
_of_event_topic(15101, Op.READ)
_of_event_topic(15102, Op.READ)


@guard(15103, right(GROUP, Op.READ), right(TOPIC, Op.READ))
def _acknowledge_events(asker: Asker, request: acknowledge_events.AcknowledgeEventsRequest) -> Passed | Response:
    if not asker.group(Op.READ, request.consumer):
        return refusal(15103, G30)
    return Passed(request) if asker.topic_of_id(Op.READ, request.topic_id) else refusal(15103, T29)


@guard(15104, right(TOPIC, Op.DESCRIBE, "of all topics: left out without an error"))
def _events_metadata(asker: Asker, request: events_metadata.EventsMetadataRequest) -> Passed:
    if request.topics is None:
        return Passed(request, kept("topics", lambda topic: asker.topic(Op.DESCRIBE, topic.name)))
    allowed, refused = split(request.topics, lambda name: asker.topic(Op.DESCRIBE, name))
    errors = [
        events_metadata.EventsMetadataTopic(error_code=T29, error_message=MESSAGES[T29], name=name) for name in refused
    ]
    return with_errors(request, refused, "topics", errors, topics=allowed)


@guard(15200, right(CLUSTER, Op.CLUSTER_ACTION), right(TOPIC, Op.ALTER))
def _replace_segments(asker: Asker, request: Any) -> Passed | Response:
    if not asker.cluster(Op.CLUSTER_ACTION):
        return refusal(15200, C31)
    return Passed(request) if asker.topic_of_id(Op.ALTER, request.topic_id) else refusal(15200, T29)
