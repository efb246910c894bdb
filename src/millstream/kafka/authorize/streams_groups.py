"""Rights of the APIs of streams groups (KIP-1071)."""

from collections.abc import Iterable

from millstream.kafka.authorize.groups import groups_with_topics
from millstream.kafka.authorize.shared import G30, GROUP, T29, TOPIC, Op, refusal
from millstream.kafka.rights import Asker, Passed, guard, right
from millstream.wire.messages import streams_group_describe, streams_group_heartbeat
from millstream.wire.schema import Response


@guard(88, right(GROUP, Op.READ), right(TOPIC, Op.DESCRIBE, "of a topic that the topology names"))
def _streams_group_heartbeat(
    asker: Asker, request: streams_group_heartbeat.StreamsGroupHeartbeatRequest
) -> Passed | Response:
    """The handler asks for the right to create internal topics, when it is known which are missing."""
    if not asker.group(Op.READ, request.group_id):
        return refusal(88, G30)
    topology = request.topology
    if topology is None or all(asker.topic(Op.DESCRIBE, name) for name in set(_names(topology.subtopologies))):
        return Passed(request)
    return refusal(88, T29)


@guard(89, right(GROUP, Op.DESCRIBE), right(TOPIC, Op.DESCRIBE, "of each topic of the topology"))
def _streams_group_describe(asker: Asker, request: streams_group_describe.StreamsGroupDescribeRequest) -> Passed:
    def named(group: streams_group_describe.DescribedStreamsGroup) -> Iterable[str]:
        return () if group.topology is None else _names(group.topology.subtopologies or ())

    message = "The described group uses topics that the client is not authorized to describe."
    return groups_with_topics(asker, request, streams_group_describe.DescribedStreamsGroup, named, message)


def _names(
    subtopologies: Iterable[streams_group_heartbeat.StreamsSubtopology | streams_group_describe.DescribedSubtopology],
) -> Iterable[str]:
    for one in subtopologies:
        yield from one.source_topics
        yield from one.repartition_sink_topics
        for topic in (*one.repartition_source_topics, *one.state_changelog_topics):
            yield topic.name
