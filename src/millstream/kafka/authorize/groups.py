"""Rights of the APIs of consumer groups."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from millstream.kafka.authorize.shared import (
    C31,
    G30,
    GROUP,
    T29,
    TOPIC,
    TXN,
    X53,
    Op,
    kept,
    refusal,
    split,
    unless_refused,
    with_errors,
)
from millstream.kafka.rights import MESSAGES, Asker, Merge, Passed, guard, right
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiKey
from millstream.wire.messages import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    offset_commit,
    offset_delete,
    offset_fetch,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
)
from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import Request, Response

_Heartbeat = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest | share_group_heartbeat.ShareGroupHeartbeatRequest
_Describe = (
    consumer_group_describe.ConsumerGroupDescribeRequest
    | share_group_describe.ShareGroupDescribeRequest
    | streams_group_describe.StreamsGroupDescribeRequest
)


def _group_member(key: ApiKey) -> None:
    """An API of a member of a group."""

    @guard(key, right(GROUP, Op.READ))
    def ask(asker: Asker, request: Any) -> Passed | Response:
        return Passed(request) if asker.group(Op.READ, request.group_id) else refusal(key, G30)


for _key in (11, 12, 13, 14):
    _group_member(_key)


@guard(8, right(GROUP, Op.READ), right(TOPIC, Op.READ))
def _offset_commit(asker: Asker, request: offset_commit.OffsetCommitRequest) -> Passed | Response:
    group = asker.group(Op.READ, request.group_id)
    allowed, refused = split(request.topics, lambda topic: group and asker.named(Op.READ, topic.name, topic.topic_id))
    error = T29 if group else G30
    errors = [
        offset_commit.OffsetCommitResponseTopic(
            topic.name,
            topic.topic_id,
            [offset_commit.OffsetCommitResponsePartition(one.partition_index, error) for one in topic.partitions],
        )
        for topic in refused
    ]
    if not group:
        return offset_commit.OffsetCommitResponse(topics=errors)
    return with_errors(request, refused, "topics", errors, topics=allowed)


@guard(9, right(GROUP, Op.DESCRIBE), right(TOPIC, Op.DESCRIBE, "of all topics: left out without an error"))
def _offset_fetch(asker: Asker, request: offset_fetch.OffsetFetchRequest) -> Passed | Response:
    if asker.version < _GROUPS_FROM:
        return _offset_fetch_of_one(asker, request)
    groups, refused_groups = split(request.groups, lambda one: asker.group(Op.DESCRIBE, one.group_id))
    refused: dict[str, list[offset_fetch.OffsetFetchRequestTopics]] = {}
    changed: list[offset_fetch.OffsetFetchRequestGroup] = []
    everything: set[str] = set()
    for group in groups:
        if group.topics is None:
            everything.add(group.group_id)
            changed.append(group)
            continue
        allowed, hidden = split(group.topics, lambda topic: asker.named(Op.DESCRIBE, topic.name, topic.topic_id))
        refused[group.group_id] = hidden
        changed.append(replace(group, topics=allowed))

    def shown(group: offset_fetch.OffsetFetchResponseGroup) -> offset_fetch.OffsetFetchResponseGroup:
        if group.group_id in everything:
            topics = [one for one in group.topics if asker.named(Op.DESCRIBE, one.name, one.topic_id)]
        elif group.error_code:
            return group
        else:
            topics = [*group.topics, *map(_refused_offsets, refused.get(group.group_id, ()))]
        return replace(group, topics=topics)

    def merge(response: offset_fetch.OffsetFetchResponse) -> Response:
        errors = [offset_fetch.OffsetFetchResponseGroup(one.group_id, [], G30) for one in refused_groups]
        return replace(response, groups=[*map(shown, response.groups), *errors])

    return Passed(replace(request, groups=changed), merge)


_GROUPS_FROM: Final = 8
_SHARE_PARTITION: Final = 2
_SHARE_FROM: Final = 6
_GROUP_ERROR_FROM: Final = 2


def _refused_offsets(topic: offset_fetch.OffsetFetchRequestTopics) -> offset_fetch.OffsetFetchResponseTopics:
    partitions = [
        offset_fetch.OffsetFetchResponsePartitions(index, -1, -1, "", T29) for index in topic.partition_indexes
    ]
    return offset_fetch.OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions)


def _offset_fetch_of_one(asker: Asker, request: offset_fetch.OffsetFetchRequest) -> Passed | Response:
    """Up to version 7: one group."""

    def errors_of(topics: Iterable[offset_fetch.OffsetFetchRequestTopic], error: ErrorCode) -> list[Any]:
        return [
            offset_fetch.OffsetFetchResponseTopic(
                topic.name,
                [
                    offset_fetch.OffsetFetchResponsePartition(index, -1, -1, "", error)
                    for index in topic.partition_indexes
                ],
            )
            for topic in topics
        ]

    if not asker.group(Op.DESCRIBE, request.group_id):
        topics = errors_of(request.topics or (), G30) if asker.version < _GROUP_ERROR_FROM else []
        return offset_fetch.OffsetFetchResponse(topics=topics, error_code=G30)
    if request.topics is None:
        return Passed(request, kept("topics", lambda topic: asker.topic(Op.DESCRIBE, topic.name)))
    allowed, refused = split(request.topics, lambda topic: asker.topic(Op.DESCRIBE, topic.name))
    return with_errors(request, refused, "topics", errors_of(refused, T29), topics=allowed)


@guard(10, right(GROUP, Op.DESCRIBE, "of a group"), right(TXN, Op.DESCRIBE, "of a transactional id"))
def _find_coordinator(asker: Asker, request: find_coordinator.FindCoordinatorRequest) -> Passed | Response:
    if request.key_type == _SHARE_PARTITION and asker.version >= _SHARE_FROM:
        if asker.cluster(Op.CLUSTER_ACTION):
            return Passed(request)
        refused = [
            find_coordinator.Coordinator(key, -1, "", -1, C31, MESSAGES[C31]) for key in request.coordinator_keys
        ]
        return find_coordinator.FindCoordinatorResponse(coordinators=refused)
    if request.key_type not in (0, 1):
        return Passed(request)
    may = asker.transaction if request.key_type else asker.group
    error = X53 if request.key_type else G30
    if asker.version < 4:
        if may(Op.DESCRIBE, request.key):
            return Passed(request)
        return find_coordinator.FindCoordinatorResponse(
            error_code=error, error_message=MESSAGES[error], node_id=-1, host="", port=-1
        )
    allowed, refused = split(request.coordinator_keys, lambda key: may(Op.DESCRIBE, key))
    errors = [find_coordinator.Coordinator(key, -1, "", -1, error, MESSAGES[error]) for key in refused]
    if not allowed and refused:
        return find_coordinator.FindCoordinatorResponse(coordinators=errors)
    return with_errors(request, refused, "coordinators", errors, coordinator_keys=allowed)


@guard(15, right(GROUP, Op.DESCRIBE))
def _describe_groups(asker: Asker, request: describe_groups.DescribeGroupsRequest) -> Passed:
    allowed, refused = split(request.groups, lambda name: asker.group(Op.DESCRIBE, name))
    errors = [
        describe_groups.DescribedGroup(error_code=G30, error_message=MESSAGES[G30], group_id=name) for name in refused
    ]
    return Passed(replace(request, groups=allowed), with_group_operations(asker, errors))


def with_group_operations(asker: Asker, errors: list[Any]) -> Merge:
    """A response whose groups have what the client may do with them, and which also has ``errors``."""

    def shown(group: Any) -> Any:
        if group.authorized_operations == OPERATIONS_NOT_ASKED:
            return group
        return replace(group, authorized_operations=asker.operations(GROUP, group.group_id))

    def merge(response: Any) -> Response:
        return replace(response, groups=[*map(shown, response.groups), *errors])

    return merge


@guard(16, right(GROUP, Op.DESCRIBE, "left out without an error, unless the client has DESCRIBE on the cluster"))
def _list_groups(asker: Asker, request: Request) -> Passed:
    if asker.cluster(Op.DESCRIBE):
        return Passed(request)
    return Passed(request, kept("groups", lambda group: asker.group(Op.DESCRIBE, group.group_id)))


@guard(42, right(GROUP, Op.DELETE))
def _delete_groups(asker: Asker, request: delete_groups.DeleteGroupsRequest) -> Passed:
    allowed, refused = split(request.groups_names, lambda name: asker.group(Op.DELETE, name))
    errors = [delete_groups.DeletableGroupResult(name, G30) for name in refused]
    return with_errors(request, refused, "results", errors, groups_names=allowed)


@guard(47, right(GROUP, Op.DELETE), right(TOPIC, Op.READ, "of each topic, if the group exists"))
def _offset_delete(asker: Asker, request: offset_delete.OffsetDeleteRequest) -> Passed | Response:
    if not asker.group(Op.DELETE, request.group_id):
        return refusal(47, G30)
    allowed, refused = split(request.topics, lambda topic: asker.topic(Op.READ, topic.name))
    errors = [
        offset_delete.OffsetDeleteResponseTopic(
            topic.name,
            [offset_delete.OffsetDeleteResponsePartition(one.partition_index, T29) for one in topic.partitions],
        )
        for topic in refused
    ]
    return unless_refused(with_errors(request, refused, "topics", errors, topics=allowed))


def member_heartbeat(asker: Asker, key: ApiKey, request: _Heartbeat) -> Passed | Response:
    """A heartbeat of a member, which names the topics that it subscribes to."""
    if not asker.group(Op.READ, request.group_id):
        return refusal(key, G30)
    if all(asker.topic(Op.DESCRIBE, name) for name in request.subscribed_topic_names or ()):
        return Passed(request)
    return refusal(key, T29)


def assigned_topics(assignments: Iterable[consumer_group_describe.DescribedAssignment]) -> set[str]:
    """The topics of assignments."""
    return {part.topic_name for assignment in assignments for part in assignment.topic_partitions}


def groups_with_topics(
    asker: Asker,
    request: _Describe,
    kind: type[Any],
    named: Callable[[Any], Iterable[str]],
    message: str = "The group has described topic(s) that the client is not authorized to describe.",
) -> Passed:
    """A description of groups, each a ``kind``. The topics that are ``named`` in a group have to be seen."""
    allowed, refused = split(request.group_ids, lambda name: asker.group(Op.DESCRIBE, name))
    errors = [kind(error_code=G30, error_message=MESSAGES[G30], group_id=name) for name in refused]
    with_operations = with_group_operations(asker, errors)

    def shown(group: Any) -> Any:
        if all(asker.topic(Op.DESCRIBE, name) for name in set(named(group))):
            return group
        return kind(error_code=T29, error_message=message, group_id=group.group_id)

    def merge(response: Any) -> Response:
        return with_operations(replace(response, groups=[*map(shown, response.groups)]))

    return Passed(replace(request, group_ids=allowed), merge)


@guard(68, right(GROUP, Op.READ), right(TOPIC, Op.DESCRIBE, "of a topic that the member names"))
def _consumer_group_heartbeat(
    asker: Asker, request: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest
) -> Passed | Response:
    return member_heartbeat(asker, 68, request)


@guard(69, right(GROUP, Op.DESCRIBE), right(TOPIC, Op.DESCRIBE, "of each topic of the group"))
def _consumer_group_describe(asker: Asker, request: consumer_group_describe.ConsumerGroupDescribeRequest) -> Passed:
    return groups_with_topics(
        asker,
        request,
        consumer_group_describe.DescribedConsumerGroup,
        lambda group: (
            assigned_topics(member.assignment for member in group.members)
            | assigned_topics(member.target_assignment for member in group.members)
        ),
    )
