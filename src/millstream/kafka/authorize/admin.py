"""Rights of the APIs that change or describe the cluster."""

from typing import Any, Final

from msgspec.structs import replace

from millstream.core.access.entry import CLUSTER_NAME
from millstream.kafka.authorize.shared import C31, CLUSTER, G30, GROUP, T29, TOPIC, Op, refusal, split, with_errors
from millstream.kafka.rights import MESSAGES, Asker, Passed, guard, pass_all, right
from millstream.model.access import Operation
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiKey
from millstream.wire.messages import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_topics,
    describe_configs,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    incremental_alter_configs,
)
from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import ZERO_UUID, Request, Response


def _whole(key: ApiKey, operation: Operation) -> None:
    """An API that asks for one right on the cluster, and has one error code."""

    @guard(key, right(CLUSTER, operation))
    def ask(asker: Asker, request: Request) -> Passed | Response:
        return Passed(request) if asker.cluster(operation) else refusal(key, C31)


for _key, _operation in (
    (29, Op.DESCRIBE),
    (35, Op.DESCRIBE),
    (46, Op.DESCRIBE),
    (48, Op.DESCRIBE_CONFIGS),
    (55, Op.DESCRIBE),
    (57, Op.ALTER),
    (64, Op.ALTER),
    (74, Op.DESCRIBE_CONFIGS),
    (15300, Op.ALTER),
    (15301, Op.ALTER),
    (15302, Op.ALTER),
    (15303, Op.ALTER),
):
    _whole(_key, _operation)


@guard(49, right(CLUSTER, Op.ALTER_CONFIGS))
def _alter_client_quotas(asker: Asker, request: alter_client_quotas.AlterClientQuotasRequest) -> Passed | Response:
    if asker.cluster(Op.ALTER_CONFIGS):
        return Passed(request)
    entries = [alter_client_quotas.AlteredEntryData(C31, MESSAGES[C31], one.entity) for one in request.entries]
    return alter_client_quotas.AlterClientQuotasResponse(entries=entries)


@guard(50, right(CLUSTER, Op.DESCRIBE))
def _describe_users(
    asker: Asker, request: describe_user_scram_credentials.DescribeUserScramCredentialsRequest
) -> Passed | Response:
    if asker.cluster(Op.DESCRIBE):
        return Passed(request)
    refused = describe_user_scram_credentials.DescribeUserScramCredentialsResult
    results = [refused(user=one.name, error_code=C31, error_message=MESSAGES[C31]) for one in request.users or ()]
    return replace(refusal(50, C31), results=results)


for _key in (17, 18, 36, 71, 72):
    guard(_key)(pass_all)


@guard(
    19,
    right(TOPIC, Op.CREATE, "unless the client has CREATE on the cluster"),
    right(TOPIC, Op.DESCRIBE_CONFIGS, "else no configuration is shown, with topic_config_error_code"),
)
def _create_topics(asker: Asker, request: create_topics.CreateTopicsRequest) -> Passed:
    everywhere = asker.cluster(Op.CREATE)
    allowed, refused = split(request.topics, lambda topic: everywhere or asker.topic(Op.CREATE, topic.name))
    errors = [
        create_topics.CreatableTopicResult(name=topic.name, error_code=T29, error_message=MESSAGES[T29])
        for topic in refused
    ]

    def shown(topic: create_topics.CreatableTopicResult) -> create_topics.CreatableTopicResult:
        if topic.error_code or asker.topic(Op.DESCRIBE_CONFIGS, topic.name):
            return topic
        return replace(topic, topic_config_error_code=int(T29), num_partitions=-1, replication_factor=-1, configs=[])

    def merge(response: create_topics.CreateTopicsResponse) -> Response:
        return replace(response, topics=[*map(shown, response.topics), *errors])

    return Passed(replace(request, topics=allowed), merge)


@guard(
    20,
    right(TOPIC, Op.DELETE, "unless the client has ALL on the cluster"),
    right(TOPIC, Op.DESCRIBE, "by name, likewise"),
)
def _delete_topics(asker: Asker, request: delete_topics.DeleteTopicsRequest) -> Passed:
    if asker.cluster(Op.DELETE):
        return Passed(request)
    errors: list[delete_topics.DeletableTopicResult] = []
    message = MESSAGES[T29]

    def may_name(name: str) -> bool:
        may = asker.topic(Op.DESCRIBE, name) and (asker.metadata.topic(name) is None or asker.topic(Op.DELETE, name))
        if not may:
            errors.append(delete_topics.DeletableTopicResult(name, ZERO_UUID, T29, message))
        return may

    def may_delete(one: delete_topics.DeleteTopicState) -> bool:
        if one.name is not None:
            return may_name(one.name)
        topic = asker.metadata.topic_by_id(one.topic_id)
        if topic is None or asker.topic(Op.DELETE, topic.name):
            return True
        shown = topic.name if asker.topic(Op.DESCRIBE, topic.name) else None
        errors.append(delete_topics.DeletableTopicResult(shown, one.topic_id, T29, message))
        return False

    topics = [one for one in request.topics if may_delete(one)]
    names = [name for name in request.topic_names if may_name(name)]
    return with_errors(request, list(errors), "responses", errors, topics=topics, topic_names=names)


@guard(30, right(CLUSTER, Op.ALTER))
def _create_acls(asker: Asker, request: create_acls.CreateAclsRequest) -> Passed | Response:
    if asker.cluster(Op.ALTER):
        return Passed(request)
    refused = create_acls.AclCreationResult(C31, MESSAGES[C31])
    return create_acls.CreateAclsResponse(results=[refused] * len(request.creations))


@guard(31, right(CLUSTER, Op.ALTER))
def _delete_acls(asker: Asker, request: delete_acls.DeleteAclsRequest) -> Passed | Response:
    if asker.cluster(Op.ALTER):
        return Passed(request)
    refused = delete_acls.DeleteAclsFilterResult(C31, MESSAGES[C31])
    return delete_acls.DeleteAclsResponse(filter_results=[refused] * len(request.filters))


_CONFIG_OF_CLUSTER: Final = (4, 8, 16)
"""Brokers, their loggers, and subscriptions to clients' metrics."""


def _config_error(asker: Asker, operation: Operation, resource: Any) -> ErrorCode | None:
    match resource.resource_type:
        case 2:
            return None if asker.topic(operation, resource.resource_name) else T29
        case 32:
            return None if asker.group(operation, resource.resource_name) else G30
        case kind if kind in _CONFIG_OF_CLUSTER:
            return None if asker.cluster(operation) else C31
        case _:
            return None


@guard(
    32,
    right(TOPIC, Op.DESCRIBE_CONFIGS, "of a topic"),
    right(GROUP, Op.DESCRIBE_CONFIGS, "of a group"),
    right(CLUSTER, Op.DESCRIBE_CONFIGS, "of brokers, loggers and client metrics"),
)
def _describe_configs(asker: Asker, request: describe_configs.DescribeConfigsRequest) -> Passed:
    allowed, refused = split(request.resources, lambda one: _config_error(asker, Op.DESCRIBE_CONFIGS, one) is None)
    errors: list[Any] = []
    for one in refused:
        error = _config_error(asker, Op.DESCRIBE_CONFIGS, one)
        assert error is not None
        errors.append(
            describe_configs.DescribeConfigsResult(error, MESSAGES[error], one.resource_type, one.resource_name, [])
        )
    return with_errors(request, refused, "results", errors, resources=allowed)


def _alter_configs(key: ApiKey, answer: Any) -> None:
    @guard(
        key,
        right(TOPIC, Op.ALTER_CONFIGS, "of a topic"),
        right(GROUP, Op.ALTER_CONFIGS, "of a group"),
        right(CLUSTER, Op.ALTER_CONFIGS, "of brokers, loggers and client metrics"),
    )
    def ask(asker: Asker, request: Any) -> Passed:
        allowed, refused = split(request.resources, lambda one: _config_error(asker, Op.ALTER_CONFIGS, one) is None)
        errors: list[Any] = []
        for one in refused:
            error = _config_error(asker, Op.ALTER_CONFIGS, one)
            assert error is not None
            errors.append(answer(error, MESSAGES[error], one.resource_type, one.resource_name))
        return with_errors(request, refused, "responses", errors, resources=allowed)


_alter_configs(33, alter_configs.AlterConfigsResourceResponse)
_alter_configs(44, incremental_alter_configs.AlterConfigsResourceResponse)


@guard(34, right(CLUSTER, Op.ALTER))
def _alter_replica_log_dirs(
    asker: Asker, request: alter_replica_log_dirs.AlterReplicaLogDirsRequest
) -> Passed | Response:
    if asker.cluster(Op.ALTER):
        return Passed(request)
    results = [
        alter_replica_log_dirs.AlterReplicaLogDirTopicResult(
            topic.name,
            [alter_replica_log_dirs.AlterReplicaLogDirPartitionResult(index, C31) for index in topic.partitions],
        )
        for one in request.dirs
        for topic in one.topics
    ]
    return alter_replica_log_dirs.AlterReplicaLogDirsResponse(results=results)


@guard(37, right(TOPIC, Op.ALTER))
def _create_partitions(asker: Asker, request: create_partitions.CreatePartitionsRequest) -> Passed:
    allowed, refused = split(request.topics, lambda topic: asker.topic(Op.ALTER, topic.name))
    errors = [create_partitions.CreatePartitionsTopicResult(one.name, T29, MESSAGES[T29]) for one in refused]
    return with_errors(request, refused, "results", errors, topics=allowed)


@guard(43, right(CLUSTER, Op.ALTER))
def _elect_leaders(asker: Asker, request: elect_leaders.ElectLeadersRequest) -> Passed | Response:
    if asker.cluster(Op.ALTER):
        return Passed(request)
    results = [
        elect_leaders.ReplicaElectionResult(
            topic.topic, [elect_leaders.PartitionResult(index, C31, MESSAGES[C31]) for index in topic.partitions]
        )
        for topic in request.topic_partitions or ()
    ]
    return elect_leaders.ElectLeadersResponse(error_code=C31, replica_election_results=results)


@guard(45, right(CLUSTER, Op.ALTER))
def _alter_partition_reassignments(
    asker: Asker, request: alter_partition_reassignments.AlterPartitionReassignmentsRequest
) -> Passed | Response:
    if asker.cluster(Op.ALTER):
        return Passed(request)
    one_partition = alter_partition_reassignments.ReassignablePartitionResponse
    responses = [
        alter_partition_reassignments.ReassignableTopicResponse(
            topic.name, [one_partition(one.partition_index, C31, MESSAGES[C31]) for one in topic.partitions]
        )
        for topic in request.topics
    ]
    return alter_partition_reassignments.AlterPartitionReassignmentsResponse(
        error_code=C31, error_message=MESSAGES[C31], responses=responses
    )


@guard(51, right(CLUSTER, Op.ALTER))
def _alter_user_scram_credentials(
    asker: Asker, request: alter_user_scram_credentials.AlterUserScramCredentialsRequest
) -> Passed | Response:
    if asker.cluster(Op.ALTER):
        return Passed(request)
    names = dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
    result = alter_user_scram_credentials.AlterUserScramCredentialsResult
    return alter_user_scram_credentials.AlterUserScramCredentialsResponse(
        results=[result(name, C31, MESSAGES[C31]) for name in names]
    )


@guard(60)
def _describe_cluster(asker: Asker, request: Request) -> Passed:
    def merge(response: Any) -> Response:
        if response.cluster_authorized_operations == OPERATIONS_NOT_ASKED:
            return response
        return replace(response, cluster_authorized_operations=asker.operations(CLUSTER, CLUSTER_NAME))

    return Passed(request, merge)


@guard(75, right(TOPIC, Op.DESCRIBE, "of all topics: left out without an error"))
def _describe_topic_partitions(
    asker: Asker, request: describe_topic_partitions.DescribeTopicPartitionsRequest
) -> Passed | Response:
    of_all = not request.topics
    wanted = (
        [describe_topic_partitions.TopicRequest(name) for name in asker.metadata.names()] if of_all else request.topics
    )
    allowed, refused = split(wanted, lambda one: asker.topic(Op.DESCRIBE, one.name))
    errors: list[Any] = [
        describe_topic_partitions.DescribeTopicPartitionsResponseTopic(error_code=T29, name=one.name)
        for one in refused
        if not of_all
    ]
    if not allowed:
        return describe_topic_partitions.DescribeTopicPartitionsResponse(topics=errors)

    def shown(topic: Any) -> Any:
        if topic.topic_authorized_operations == OPERATIONS_NOT_ASKED:
            return topic
        return replace(topic, topic_authorized_operations=asker.operations(TOPIC, topic.name or ""))

    def merge(response: describe_topic_partitions.DescribeTopicPartitionsResponse) -> Response:
        return replace(response, topics=[*map(shown, response.topics), *errors])

    return Passed(replace(request, topics=allowed), merge)
