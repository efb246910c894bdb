"""The cluster's side of a run: what it has, and the requests that change it, over one connection as the caller.

Everything but schemas goes over Kafka's API, so the broker's own checks, rights and audit apply. Schemas go to the
registry's REST API through ``Registry``.
"""

import urllib.parse
from collections.abc import Iterable
from typing import Any, Final, Protocol

from millstream.apply import plan as steps
from millstream.apply.model import Loaded
from millstream.apply.plan import Action, Present, PresentSchema, PresentTopic
from millstream.client import rights
from millstream.client.connection import Connection
from millstream.client.rights import Acl
from millstream.core.access.entry import AclEntry
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
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
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse

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
        frozenset() if wanted.acls is None else frozenset(AclEntry(*one) for one in rights.read_acls(connection)),
        {} if wanted.quotas is None else rights.read_quotas(connection),
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
        case steps.SetUser(name, mechanism, password):
            rights.set_password(connection, name, mechanism, password)
        case steps.DeleteUser(name, mechanisms):
            for mechanism in mechanisms:
                rights.remove_credential(connection, name, mechanism)
        case steps.AddAcl(entry):
            rights.add_acls(connection, [_acl(entry)])
        case steps.RemoveAcl(entry):
            rights.remove_acl(connection, _acl(entry))
        case steps.AlterQuota(entity, values):
            rights.set_quotas(connection, entity, values)
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
            found = connection.ask(CreateTopicsRequest([topic], timeout_ms), CreateTopicsResponse).topics
            return [(one.error_code, one.error_message) for one in found]
        case steps.AddPartitions(name, partitions):
            asked = CreatePartitionsRequest([CreatePartitionsTopic(name, partitions, None)], timeout_ms)
            return [
                (one.error_code, one.error_message) for one in connection.ask(asked, CreatePartitionsResponse).results
            ]
        case steps.AlterTopic(name, configs):
            changes = [
                AlterableConfig(key, _DELETE if value is None else _SET, value) for key, value in configs.items()
            ]
            altered = IncrementalAlterConfigsRequest([AlterConfigsResource(_TOPIC, name, changes)])
            return [
                (one.error_code, one.error_message)
                for one in connection.ask(altered, IncrementalAlterConfigsResponse).responses
            ]
        case steps.DeleteTopic(name):
            deleted = DeleteTopicsRequest([DeleteTopicState(name)], [name], timeout_ms)
            return [
                (one.error_code, one.error_message) for one in connection.ask(deleted, DeleteTopicsResponse).responses
            ]


def _acl(one: AclEntry) -> Acl:
    return Acl(one.resource_type, one.pattern_type, one.name, one.principal, one.host, one.operation, one.permission)


def _topics(connection: Connection) -> dict[str, PresentTopic]:
    asked = MetadataRequest(None, False)
    found = [
        topic
        for topic in connection.ask(asked, MetadataResponse, lowest=4).topics
        if topic.name is not None and not topic.is_internal
    ]
    resources = [DescribeConfigsResource(_TOPIC, topic.name or "", None) for topic in found]
    configs: dict[str, dict[str, str]] = {}
    if resources:
        for result in connection.ask(DescribeConfigsRequest(resources), DescribeConfigsResponse).results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue  # it was deleted since it was listed
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
        if topic.name in configs
    }


def _users(connection: Connection) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for one in rights.read_users(connection):
        found[one.user] = (*found.get(one.user, ()), one.mechanism)
    return found


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
