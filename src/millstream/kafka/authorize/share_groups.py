"""Rights of the APIs of share groups (KIP-932)."""

from msgspec.structs import replace

from millstream.coordinator.share_states import StateRequest, response_to
from millstream.kafka.authorize.groups import assigned_topics, groups_with_topics, member_heartbeat
from millstream.kafka.authorize.shared import (
    C31,
    CLUSTER,
    G30,
    GROUP,
    T29,
    TOPIC,
    Op,
    refusal,
    split,
    unless_refused,
    with_errors,
)
from millstream.kafka.rights import MESSAGES, Asker, Passed, guard, right
from millstream.model.quantities import ApiKey
from millstream.wire.messages import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    describe_share_group_offsets,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
)
from millstream.wire.schema import Request, Response


@guard(76, right(GROUP, Op.READ), right(TOPIC, Op.DESCRIBE, "of a topic that the member names"))
def _share_group_heartbeat(
    asker: Asker, request: share_group_heartbeat.ShareGroupHeartbeatRequest
) -> Passed | Response:
    return member_heartbeat(asker, 76, request)


@guard(77, right(GROUP, Op.DESCRIBE), right(TOPIC, Op.DESCRIBE, "of each topic of the group"))
def _share_group_describe(asker: Asker, request: share_group_describe.ShareGroupDescribeRequest) -> Passed:
    return groups_with_topics(
        asker,
        request,
        share_group_describe.DescribedShareGroup,
        lambda group: assigned_topics(member.assignment for member in group.members),
    )


@guard(90, right(GROUP, Op.DESCRIBE), right(TOPIC, Op.DESCRIBE, "left out without an error where all are asked for"))
def _describe_share_group_offsets(
    asker: Asker, request: describe_share_group_offsets.DescribeShareGroupOffsetsRequest
) -> Passed:
    allowed, refused = split(request.groups, lambda group: asker.group(Op.DESCRIBE, group.group_id))
    hidden: list[list[describe_share_group_offsets.DescribeShareGroupOffsetsTopic] | None] = []
    asked: list[describe_share_group_offsets.DescribeShareGroupOffsetsGroup] = []
    for group in allowed:
        if group.topics is None:
            hidden.append(None)
            asked.append(group)
        else:
            seen, unseen = split(group.topics, lambda topic: asker.topic(Op.DESCRIBE, topic.topic_name))
            hidden.append(unseen)
            asked.append(replace(group, topics=seen))

    def merge(response: describe_share_group_offsets.DescribeShareGroupOffsetsResponse) -> Response:
        groups: list[describe_share_group_offsets.ShareOffsetsGroup] = []
        for group, unseen in zip(response.groups, hidden, strict=True):
            if unseen is None:
                topics = [topic for topic in group.topics if asker.topic(Op.DESCRIBE, topic.topic_name)]
            else:
                topics = group.topics if group.error_code else [*group.topics, *map(_hidden, unseen)]
            groups.append(replace(group, topics=topics))
        none = describe_share_group_offsets.ShareOffsetsGroup
        errors = [none(group.group_id, error_code=G30, error_message=MESSAGES[G30]) for group in refused]
        return replace(response, groups=[*groups, *errors])

    return Passed(replace(request, groups=asked), merge)


def _hidden(
    topic: describe_share_group_offsets.DescribeShareGroupOffsetsTopic,
) -> describe_share_group_offsets.ShareOffsetsTopic:
    one = describe_share_group_offsets.ShareOffsetsPartition
    partitions = [one(index, -1, error_code=T29, error_message=MESSAGES[T29]) for index in topic.partitions]
    return describe_share_group_offsets.ShareOffsetsTopic(topic.topic_name, partitions=partitions)


@guard(91, right(GROUP, Op.READ), right(TOPIC, Op.READ))
def _alter_share_group_offsets(
    asker: Asker, request: alter_share_group_offsets.AlterShareGroupOffsetsRequest
) -> Passed | Response:
    if not asker.group(Op.READ, request.group_id):
        return refusal(91, G30)
    allowed, refused = split(request.topics, lambda topic: asker.topic(Op.READ, topic.topic_name))
    partition = alter_share_group_offsets.AlteredShareOffsetsPartition
    errors = [
        alter_share_group_offsets.AlteredShareOffsetsTopic(
            topic.topic_name,
            partitions=[partition(one.partition_index, T29, MESSAGES[T29]) for one in topic.partitions],
        )
        for topic in refused
    ]
    return unless_refused(with_errors(request, refused, "responses", errors, topics=allowed))


@guard(92, right(GROUP, Op.DELETE), right(TOPIC, Op.READ))
def _delete_share_group_offsets(
    asker: Asker, request: delete_share_group_offsets.DeleteShareGroupOffsetsRequest
) -> Passed | Response:
    if not asker.group(Op.DELETE, request.group_id):
        return refusal(92, G30)
    allowed, refused = split(request.topics, lambda topic: asker.topic(Op.READ, topic.topic_name))
    deleted = delete_share_group_offsets.DeletedShareOffsetsTopic
    errors = [deleted(topic.topic_name, error_code=T29, error_message=MESSAGES[T29]) for topic in refused]
    return unless_refused(with_errors(request, refused, "responses", errors, topics=allowed))


@guard(78, right(GROUP, Op.READ), right(TOPIC, Op.READ))
def _share_fetch(asker: Asker, request: share_fetch.ShareFetchRequest) -> Passed | Response:
    return _in_group(asker, request, request.group_id, 78)


@guard(79, right(GROUP, Op.READ), right(TOPIC, Op.READ))
def _share_acknowledge(asker: Asker, request: share_acknowledge.ShareAcknowledgeRequest) -> Passed | Response:
    return _in_group(asker, request, request.group_id, 79)


def _in_group(asker: Asker, request: Request, group_id: str | None, key: ApiKey) -> Passed | Response:
    """The handlers ask for the rights on the topics of a session, which outlive a request."""
    return Passed(request) if asker.group(Op.READ, group_id or "") else refusal(key, G30)


def _share_group_states(asker: Asker, request: StateRequest) -> Passed | Response:
    if asker.cluster(Op.CLUSTER_ACTION):
        return Passed(request)
    return response_to(request, [(int(C31), None)] * sum(len(topic.partitions) for topic in request.topics))


for _key in range(83, 88):
    guard(_key, right(CLUSTER, Op.CLUSTER_ACTION))(_share_group_states)
