"""The cluster's side of a run: what it has, and the requests that change it, over one connection as the caller.

Everything but schemas goes over Kafka's API, so the broker's own checks, rights and audit apply. Schemas go to the
registry's REST API through ``Registry``.
"""

import secrets
import urllib.parse
from collections.abc import Iterable
from typing import Any, Final, Protocol

from millstream.apply import plan as steps
from millstream.apply.model import Loaded
from millstream.apply.plan import Action, Present, PresentSchema, PresentTopic
from millstream.client.connection import Connection
from millstream.core.access.entry import AclEntry
from millstream.errors import Rejected
from millstream.model.access import Operation, PatternType, Permission, ResourceType
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterEntryData,
    OpData,
)
from millstream.wire.messages.alter_client_quotas import EntityData as AlteredEntity
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from millstream.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millstream.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from millstream.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from millstream.wire.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from millstream.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.sasl import SCRAM_BY_NAME, SCRAM_BY_NUMBER, salted_password

ITERATIONS: Final = 8192
_SALT_BYTES: Final = 16
_TOPIC: Final = 2
_OWN_CONFIG: Final = 1
"""Source of a property that a topic has itself (Kafka's DYNAMIC_TOPIC_CONFIG)."""
_SET, _DELETE = 0, 1


class Registry(Protocol):
    """A schema registry, as the caller."""

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """HTTP status and document; of a refusal the document is its sentence. Raises if nothing answers."""
        ...


def present(connection: Connection, registry: Registry | None, loaded: Loaded) -> Present:
    """What the cluster has of the kinds that the file names. ``registry`` may be None for a file without schemas."""
    wanted = loaded.wanted
    return Present(
        {} if wanted.topics is None else _topics(connection),
        {} if wanted.users is None else _users(connection),
        frozenset() if wanted.acls is None else frozenset(_acls(connection)),
        {} if wanted.quotas is None else _quotas(connection),
        {} if registry is None else {name: _schema(registry, name, loaded) for name in wanted.schemas or {}},
    )


def carry_out(connection: Connection, registry: Registry | None, action: Action, timeout_ms: int) -> None:
    """Do one step.

    Raises:
        MillstreamError: it was refused, or that is unknown.
    """
    match action:
        case steps.RegisterSchema() | steps.SetCompatibility():
            assert registry is not None, "a plan with schemas was made of a registry"
            _tell_registry(registry, action)
        case steps.SetUser() | steps.DeleteUser():
            request = _user_request(action)
            _check(
                (one.error_code, one.error_message)
                for one in connection.call(request, AlterUserScramCredentialsResponse, 0).results
            )
        case steps.AddAcl() | steps.RemoveAcl():
            _change_acl(connection, action)
        case steps.AlterQuota(entity, values):
            changes = [OpData(key, value or 0.0, value is None) for key, value in values.items()]
            parts = [AlteredEntity(kind, name) for kind, name in entity]
            asked = AlterClientQuotasRequest([AlterEntryData(parts, changes)])
            answer = connection.call(asked, AlterClientQuotasResponse, 1)
            _check((one.error_code, one.error_message) for one in answer.entries)
        case _:
            _check(_change_topic(connection, action, timeout_ms))


_Errors = Iterable[tuple[int, str | None]]


def _check(results: _Errors) -> None:
    for code, message in results:
        if code:
            name = ErrorCode(code).name
            raise Rejected((message or name).rstrip("."), ErrorCode(code))


def _change_topic(
    connection: Connection,
    action: steps.CreateTopic | steps.AddPartitions | steps.AlterTopic | steps.DeleteTopic,
    timeout_ms: int,
) -> _Errors:
    match action:
        case steps.CreateTopic(name, partitions, replication, configs):
            entries = [CreatableTopicConfig(key, value) for key, value in configs.items()]
            topic = CreatableTopic(name, partitions, replication, [], entries)
            found = connection.call(CreateTopicsRequest([topic], timeout_ms), CreateTopicsResponse, 7).topics
            return [(one.error_code, one.error_message) for one in found]
        case steps.AddPartitions(name, partitions):
            asked = CreatePartitionsRequest([CreatePartitionsTopic(name, partitions, None)], timeout_ms)
            return [
                (one.error_code, one.error_message)
                for one in connection.call(asked, CreatePartitionsResponse, 3).results
            ]
        case steps.AlterTopic(name, configs):
            changes = [
                AlterableConfig(key, _DELETE if value is None else _SET, value) for key, value in configs.items()
            ]
            altered = IncrementalAlterConfigsRequest([AlterConfigsResource(_TOPIC, name, changes)])
            return [
                (one.error_code, one.error_message)
                for one in connection.call(altered, IncrementalAlterConfigsResponse, 1).responses
            ]
        case steps.DeleteTopic(name):
            deleted = DeleteTopicsRequest([DeleteTopicState(name)], [], timeout_ms)
            return [
                (one.error_code, one.error_message)
                for one in connection.call(deleted, DeleteTopicsResponse, 6).responses
            ]


def _user_request(action: steps.SetUser | steps.DeleteUser) -> AlterUserScramCredentialsRequest:
    if isinstance(action, steps.DeleteUser):
        gone = [ScramCredentialDeletion(action.name, SCRAM_BY_NAME[one].number) for one in action.mechanisms]
        return AlterUserScramCredentialsRequest(gone, [])
    scram, salt = SCRAM_BY_NAME[action.mechanism], secrets.token_bytes(_SALT_BYTES)
    salted = salted_password(scram, action.password, salt, ITERATIONS)
    made = ScramCredentialUpsertion(action.name, scram.number, ITERATIONS, salt, salted)
    return AlterUserScramCredentialsRequest([], [made])


def _change_acl(connection: Connection, action: steps.AddAcl | steps.RemoveAcl) -> None:
    one = action.entry
    if isinstance(action, steps.AddAcl):
        made = AclCreation(
            one.resource_type, one.name, one.pattern_type, one.principal, one.host, one.operation, one.permission
        )
        answer = connection.call(CreateAclsRequest([made]), CreateAclsResponse, 3)
        _check((each.error_code, each.error_message) for each in answer.results)
        return
    meant = DeleteAclsFilter(
        one.resource_type, one.name, one.pattern_type, one.principal, one.host, one.operation, one.permission
    )
    deleted = connection.call(DeleteAclsRequest([meant]), DeleteAclsResponse, 3)
    _check((each.error_code, each.error_message) for each in deleted.filter_results)


def _topics(connection: Connection) -> dict[str, PresentTopic]:
    asked = MetadataRequest(None, False)
    found = [
        topic
        for topic in connection.call(asked, MetadataResponse, connection.version_of(3, 4)).topics
        if topic.name is not None and not topic.is_internal
    ]
    resources = [DescribeConfigsResource(_TOPIC, topic.name or "", None) for topic in found]
    configs: dict[str, dict[str, str]] = {}
    if resources:
        for result in connection.call(DescribeConfigsRequest(resources), DescribeConfigsResponse, 4).results:
            _check([(result.error_code, result.error_message)])
            configs[result.resource_name] = {
                one.name: one.value or "" for one in result.configs if one.config_source == _OWN_CONFIG
            }
    return {
        topic.name or "": PresentTopic(
            len(topic.partitions),
            max((len(one.replica_nodes) for one in topic.partitions), default=0),
            configs[topic.name or ""],
        )
        for topic in found
    }


def _users(connection: Connection) -> dict[str, tuple[str, ...]]:
    answer = connection.call(DescribeUserScramCredentialsRequest(None), DescribeUserScramCredentialsResponse, 0)
    _check([(answer.error_code, answer.error_message)])
    return {
        one.user: tuple(SCRAM_BY_NUMBER[info.mechanism].name for info in one.credential_infos)
        for one in answer.results
        if not one.error_code
    }


def _acls(connection: Connection) -> Iterable[AclEntry]:
    asked = DescribeAclsRequest(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)
    answer = connection.call(asked, DescribeAclsResponse, 3)
    _check([(answer.error_code, answer.error_message)])
    for resource in answer.resources:
        kind, pattern, name = resource.resource_type, resource.pattern_type, resource.resource_name
        for one in resource.acls:
            yield AclEntry(kind, pattern, name, one.principal, one.host, one.operation, one.permission_type)


def _quotas(connection: Connection) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    answer = connection.call(DescribeClientQuotasRequest([], False), DescribeClientQuotasResponse, 1)
    _check([(answer.error_code, answer.error_message)])
    return {
        tuple(sorted(((part.entity_type, part.entity_name) for part in entry.entity), key=lambda part: part[0])): {
            one.key: one.value for one in entry.values
        }
        for entry in answer.entries or []
    }


def _schema(registry: Registry, subject: str, loaded: Loaded) -> PresentSchema:
    quoted = urllib.parse.quote(subject, safe="")
    kind, text = loaded.schema_texts[subject]
    body = {"schema": text, "schemaType": kind}
    level = registry.ask("GET", f"/config/{quoted}")
    status, _ = registry.ask("POST", f"/subjects/{quoted}", body)
    compatibility = level[1]["compatibilityLevel"] if level[0] == 200 else ""
    if status == 200:
        return PresentSchema(True, compatibility)
    status, found = registry.ask("POST", f"/compatibility/subjects/{quoted}/versions?verbose=true", body)
    if status == 404:  # the subject has no version so far
        return PresentSchema(False, compatibility)
    if status != 200:
        return PresentSchema(False, compatibility, (str(found),))
    faults = () if found["is_compatible"] else tuple(found.get("messages") or ("it is not compatible",))
    return PresentSchema(False, compatibility, faults)


def _tell_registry(registry: Registry, action: steps.RegisterSchema | steps.SetCompatibility) -> None:
    quoted = urllib.parse.quote(action.subject, safe="")
    if isinstance(action, steps.SetCompatibility):
        status, said = registry.ask("PUT", f"/config/{quoted}", {"compatibility": action.level})
    else:
        body = {"schema": action.text, "schemaType": action.kind}
        status, said = registry.ask("POST", f"/subjects/{quoted}/versions", body)
    if status != 200:
        raise Rejected(str(said).rstrip("."))
