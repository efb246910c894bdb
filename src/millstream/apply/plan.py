"""The difference between a file and a cluster, as steps. Pure: nothing is asked, nothing changes.

Steps stand in the order in which they are safe: topics before rights on them, what is made before what is removed.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from millstream.apply.model import Loaded, Quota, entries_of, plain_configs
from millstream.config.forms import exact
from millstream.config.yaml_file import Path, Problem
from millstream.core.access.entry import AclEntry
from millstream.model.access import Operation, PatternType, Permission, ResourceType

_SCHEMAS: Final = "_schemas"


class PresentTopic(msgspec.Struct, frozen=True):
    """A topic of the cluster. ``configs`` are the properties that it has itself, not those that it inherits."""

    partitions: int
    replication: int
    configs: dict[str, str]


class PresentSchema(msgspec.Struct, frozen=True):
    """What the registry says of a subject of the file."""

    registered: bool
    """It has this very schema already."""
    compatibility: str
    """The subject's own level; empty if it has none."""
    faults: tuple[str, ...] = ()
    """Why the schema cannot be its next version."""


class Present(msgspec.Struct, frozen=True):
    """What the cluster has, of the kinds that the file names."""

    topics: dict[str, PresentTopic] = {}
    users: dict[str, tuple[str, ...]] = {}
    """Mechanisms of each."""
    acls: frozenset[AclEntry] = frozenset()
    quotas: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {}
    schemas: dict[str, PresentSchema] = {}


class CreateTopic(msgspec.Struct, frozen=True):
    """Create a topic; -1 leaves a number to the broker."""

    name: str
    partitions: int
    replication: int
    configs: dict[str, str]


class AddPartitions(msgspec.Struct, frozen=True):
    """Give a topic so many partitions."""

    name: str
    partitions: int


class AlterTopic(msgspec.Struct, frozen=True):
    """Set properties of a topic; None gives one its default back."""

    name: str
    configs: dict[str, str | None]


class DeleteTopic(msgspec.Struct, frozen=True):
    """Delete a topic with its records."""

    name: str


class SetUser(msgspec.Struct, frozen=True):
    """Give a user a password, for one mechanism."""

    name: str
    mechanism: str
    password: str

    def __repr__(self) -> str:
        return f"SetUser({self.name!r})"


class DeleteUser(msgspec.Struct, frozen=True):
    """Take the credentials of a user."""

    name: str
    mechanisms: tuple[str, ...]


class AddAcl(msgspec.Struct, frozen=True):
    """Add one entry."""

    entry: AclEntry


class RemoveAcl(msgspec.Struct, frozen=True):
    """Remove one entry."""

    entry: AclEntry


class AlterQuota(msgspec.Struct, frozen=True):
    """Set quotas of an entity; None removes one."""

    entity: tuple[tuple[str, str | None], ...]
    values: dict[str, float | None]


class RegisterSchema(msgspec.Struct, frozen=True):
    """Register a schema as the next version of a subject."""

    subject: str
    kind: str
    text: str


class SetCompatibility(msgspec.Struct, frozen=True):
    """Set the compatibility of a subject."""

    subject: str
    level: str


Action = (
    CreateTopic
    | AddPartitions
    | AlterTopic
    | DeleteTopic
    | SetUser
    | DeleteUser
    | AddAcl
    | RemoveAcl
    | AlterQuota
    | RegisterSchema
    | SetCompatibility
)


class Step(msgspec.Struct, frozen=True):
    """One request. ``verb`` is create, change or delete; ``details`` has a line for each value that differs."""

    verb: str
    what: str
    action: Action
    details: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """What a run does. With ``problems`` it must do nothing."""

    steps: list[Step]
    problems: list[Problem]


def plan(loaded: Loaded, present: Present, *, prune: bool, login: str = "") -> Plan:
    """Compare. ``login`` is the user as which the run logs in: it is never removed."""
    problems: list[Problem] = []
    steps = [
        *_topics(loaded, present, problems, prune=prune),
        *_users(loaded, present),
        *_acls(loaded, present),
        *_quotas(loaded, present, prune=prune),
        *_schemas(loaded, present, problems),
    ]
    if prune:
        steps += _pruned(loaded, present, login)
    return Plan(steps, problems)


def _topics(loaded: Loaded, present: Present, problems: list[Problem], *, prune: bool) -> Iterator[Step]:
    for name, topic in (loaded.wanted.topics or {}).items():
        what, configs = f"topic {name}", plain_configs(topic)
        found, path = present.topics.get(name), ("topics", name)
        if found is None:
            action = CreateTopic(name, topic.partitions or -1, topic.replication or -1, configs)
            details = [f"partitions: {topic.partitions or 'as the broker says'}"]
            details += [f"{key}: {value}" for key, value in sorted(configs.items())]
            yield Step("create", what, action, tuple(details))
            continue
        problems += _refused(path, name, topic.partitions, topic.replication, found)
        if topic.partitions is not None and topic.partitions > found.partitions:
            details = (f"partitions: {found.partitions} -> {topic.partitions}",)
            yield Step("change", what, AddPartitions(name, topic.partitions), details)
        changes: dict[str, str | None] = {
            key: value for key, value in sorted(configs.items()) if found.configs.get(key) != value
        }
        if prune:
            changes |= dict.fromkeys(sorted(found.configs.keys() - configs.keys()))
        if changes:
            details = tuple(
                f"{key}: {found.configs.get(key, 'default')} -> {'default' if value is None else value}"
                for key, value in changes.items()
            )
            yield Step("change", what, AlterTopic(name, changes), details)


def _refused(
    path: Path, name: str, partitions: int | None, replication: int | None, found: PresentTopic
) -> Iterator[Problem]:
    if partitions is not None and partitions < found.partitions:
        message = f"topic {name} has {found.partitions} partitions, and partitions are only ever added"
        yield Problem((*path, "partitions"), message)
    if replication is not None and replication != found.replication:
        command = f"millstream topic alter {name} --replication {replication}"
        yield Problem((*path, "replication"), f"topic {name} has {found.replication} replicas; '{command}' moves them")


def _users(loaded: Loaded, present: Present) -> Iterator[Step]:
    for name, user in (loaded.wanted.users or {}).items():
        if user.mechanism not in present.users.get(name, ()):
            action = SetUser(name, user.mechanism, loaded.passwords[name])
            yield Step("create", f"user {name}", action, (f"mechanism: {user.mechanism}",))


def _acls(loaded: Loaded, present: Present) -> Iterator[Step]:
    wanted = [entry for acl in loaded.wanted.acls or () for entry in entries_of(acl)]
    for entry in dict.fromkeys(wanted):
        if entry not in present.acls:
            yield Step("create", f"right {shown(entry)}", AddAcl(entry))


def _quotas(loaded: Loaded, present: Present, *, prune: bool) -> Iterator[Step]:
    for quota in loaded.wanted.quotas or ():
        found = present.quotas.get(quota.entity, {})
        changes: dict[str, float | None] = {
            key: value for key, value in quota.values.items() if found.get(key) != value
        }
        if prune:
            changes |= dict.fromkeys(sorted(found.keys() - quota.values.keys()))
        if changes:
            details = tuple(f"{key}: {_number(found.get(key))} -> {_number(value)}" for key, value in changes.items())
            verb = "change" if found else "create"
            yield Step(verb, f"quota of {entity_words(quota)}", AlterQuota(quota.entity, changes), details)


def _schemas(loaded: Loaded, present: Present, problems: list[Problem]) -> Iterator[Step]:
    for subject, schema in (loaded.wanted.schemas or {}).items():
        found = present.schemas[subject]
        if schema.compatibility and schema.compatibility != found.compatibility:
            details = (f"compatibility: {found.compatibility or 'default'} -> {schema.compatibility}",)
            yield Step("change", f"subject {subject}", SetCompatibility(subject, schema.compatibility), details)
        problems += [Problem(("schemas", subject, "file"), f"does not fit {subject}: {one}") for one in found.faults]
        if not found.registered:
            kind, text = loaded.schema_texts[subject]
            yield Step("create", f"schema of {subject}", RegisterSchema(subject, kind, text), (f"type: {kind}",))


def _pruned(loaded: Loaded, present: Present, login: str) -> Iterator[Step]:
    wanted = loaded.wanted
    if wanted.acls is not None:
        kept = {entry for acl in wanted.acls for entry in entries_of(acl)}
        for entry in sorted(present.acls - kept):
            yield Step("delete", f"right {shown(entry)}", RemoveAcl(entry))
    if wanted.quotas is not None:
        entities = {quota.entity for quota in wanted.quotas}
        for entity, values in sorted(present.quotas.items(), key=repr):
            if entity not in entities:
                words = ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in entity)
                gone: dict[str, float | None] = dict.fromkeys(values)
                yield Step("delete", f"quota of {words}", AlterQuota(entity, gone))
    if wanted.users is not None:
        for name, mechanisms in sorted(present.users.items()):
            if name not in wanted.users and name != login:
                yield Step("delete", f"user {name}", DeleteUser(name, mechanisms))
    if wanted.topics is not None:
        for name in sorted(present.topics):
            if name not in wanted.topics and not name.startswith("__") and name != _SCHEMAS:
                yield Step("delete", f"topic {name}", DeleteTopic(name), ("its records are lost",))


def entity_words(quota: Quota) -> str:
    """An entity for people."""
    return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in quota.entity)


def shown(entry: AclEntry) -> str:
    """An entry for people."""
    verb = "allows" if entry.permission == Permission.ALLOW else "denies"
    where = ResourceType(entry.resource_type).name.lower().replace("_", " ")
    name = f"{entry.name}*" if entry.pattern_type == PatternType.PREFIXED else entry.name
    operation = Operation(entry.operation).name.lower().replace("_", "-")
    host = "" if entry.host == "*" else f" from {entry.host}"
    return f"{verb} {entry.principal} {operation} on {where} {name}{host}"


def _number(value: Any) -> str:
    return "none" if value is None else exact(value)
