"""What a file may say, and what is wrong with it as far as the file alone tells."""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from millstream.config.errors import ConfigError
from millstream.config.forms import exact
from millstream.config.topic_properties import topic_property
from millstream.config.yaml_file import Document, InvalidFile, Path, Problem, complaints, converted, read_file
from millstream.core.access.entry import CLUSTER_NAME, AclEntry
from millstream.model.access import Operation, PatternType, Permission, ResourceType, by_name
from millstream.wire.sasl import SCRAM_BY_NAME, SCRAM_SHA_512

QUOTAS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
OPERATIONS: Final = by_name(one for one in Operation if Operation.ALL <= one <= Operation.IDEMPOTENT_WRITE)
COMPATIBILITIES: Final = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
_SCHEMA_TYPES: Final = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}
_RESOURCES: Final = ("topic", "group", "transactional_id", "cluster")


class Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic. Without ``partitions`` or ``replication`` the broker chooses, and a topic that exists keeps its own."""

    partitions: int | None = None
    replication: int | None = None
    configs: dict[str, str | int | float | bool] = {}


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user that logs in by SCRAM. ``password_file`` is relative to the file; its first line is the password."""

    password_file: str
    mechanism: str = SCRAM_SHA_512.name


class Acl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rights of one principal on one resource; either ``allow`` or ``deny``."""

    principal: str
    allow: list[str] = []
    deny: list[str] = []
    topic: str | None = None
    group: str | None = None
    transactional_id: str | None = None
    cluster: bool = False
    prefixed: bool = False
    host: str = "*"


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas of a user, a client id, both, or an address; ``<default>`` stands for all without quotas of their own."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    producer_byte_rate: float | None = None
    consumer_byte_rate: float | None = None
    request_percentage: float | None = None
    controller_mutation_rate: float | None = None
    connection_creation_rate: float | None = None

    @property
    def entity(self) -> tuple[tuple[str, str | None], ...]:
        """(kind, name) pairs in order; None is the default entity."""
        parts = (("client-id", self.client_id), ("ip", self.ip), ("user", self.user))
        return tuple((kind, None if name == DEFAULT else name) for kind, name in parts if name is not None)

    @property
    def values(self) -> dict[str, float]:
        return {name: value for name in QUOTAS if (value := getattr(self, name)) is not None}


DEFAULT: Final = "<default>"


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schema of a subject. ``file`` is relative to the file; ``type`` follows from its name unless it is given."""

    file: str
    type: str = ""
    compatibility: str = ""


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. A kind that it lacks is None: pruning does not reach it."""

    topics: dict[str, Topic] | None = None
    users: dict[str, User] | None = None
    acls: list[Acl] | None = None
    quotas: list[Quota] | None = None
    schemas: dict[str, Schema] | None = None


class Loaded(msgspec.Struct, frozen=True):
    """A file that is right in itself."""

    wanted: Wanted
    document: Document
    passwords: dict[str, str]
    """By user."""
    schema_texts: dict[str, tuple[str, str]]
    """(type, text) by subject."""


def load(name: str) -> Loaded:
    """Read and check a file.

    Raises:
        InvalidFile: something is wrong with it; the message has a line for each problem.
        OSError: it cannot be read.
    """
    document = read_file(name)
    wanted = converted(document, Wanted)
    directory = os.path.dirname(os.path.abspath(name))
    problems = list(_problems(wanted))
    passwords: dict[str, str] = {}
    texts: dict[str, tuple[str, str]] = {}
    for user, one in (wanted.users or {}).items():
        try:
            passwords[user] = _first_line(os.path.join(directory, one.password_file))
        except (OSError, ValueError) as error:
            problems.append(Problem(("users", user, "password_file"), f"{one.password_file} {_reason(error)}"))
    for subject, one in (wanted.schemas or {}).items():
        try:
            texts[subject] = (schema_type(one), _text(os.path.join(directory, one.file)))
        except (OSError, ValueError) as error:
            problems.append(Problem(("schemas", subject, "file"), f"{one.file} {_reason(error)}"))
    if problems:
        raise InvalidFile(complaints(document, problems))
    return Loaded(wanted, document, passwords, texts)


def schema_type(schema: Schema) -> str:
    """The registry's name of a schema's type; empty if it does not follow from the file's name."""
    return (schema.type or _SCHEMA_TYPES.get(os.path.splitext(schema.file)[1].lower(), "")).upper()


def plain_configs(topic: Topic) -> dict[str, str]:
    """A topic's properties in Kafka's spelling. Raises ConfigError for an unknown property or a value that is not
    valid.
    """
    found: dict[str, str] = {}
    for name, value in topic.configs.items():
        declaration = topic_property(name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        found[name] = declaration.write(declaration.read(text)) or ""
    return found


def entries_of(acl: Acl) -> list[AclEntry]:
    """The single entries of a right."""
    kind, name = next(
        (ResourceType[one.upper()], CLUSTER_NAME if one == "cluster" else str(getattr(acl, one)))
        for one in _RESOURCES
        if getattr(acl, one)
    )
    pattern = PatternType.PREFIXED if acl.prefixed else PatternType.LITERAL
    permission = Permission.DENY if acl.deny else Permission.ALLOW
    return [
        AclEntry(int(kind), int(pattern), name, acl.principal, acl.host, int(OPERATIONS[one]), int(permission))
        for one in (acl.deny or acl.allow)
    ]


def _problems(wanted: Wanted) -> Iterator[Problem]:
    for name, topic in (wanted.topics or {}).items():
        yield from _topic_problems(("topics", name), name, topic)
    for name, user in (wanted.users or {}).items():
        yield from _unknown(("users", name, "mechanism"), user.mechanism, SCRAM_BY_NAME)
    for index, acl in enumerate(wanted.acls or ()):
        yield from _acl_problems(("acls", index), acl)
    seen: set[Any] = set()
    for index, quota in enumerate(wanted.quotas or ()):
        yield from _quota_problems(("quotas", index), quota)
        if quota.entity in seen:
            yield Problem(("quotas", index), "stands here twice; put the quotas of one entity into one entry")
        seen.add(quota.entity)
    for subject, schema in (wanted.schemas or {}).items():
        if not schema_type(schema):
            message = f"the type of {schema.file} does not follow from its name; say type: avro, json or protobuf"
            yield Problem(("schemas", subject, "file"), message)
        elif schema.type:
            yield from _unknown(("schemas", subject, "type"), schema_type(schema), tuple(_SCHEMA_TYPES.values()))
        if schema.compatibility:
            yield from _unknown(("schemas", subject, "compatibility"), schema.compatibility, COMPATIBILITIES)


def _topic_problems(path: Path, name: str, topic: Topic) -> Iterator[Problem]:
    if name.startswith("__"):
        yield Problem(path, f"{name} is an internal topic, which the broker makes automatically", at_key=True)
    for field in ("partitions", "replication"):
        value = getattr(topic, field)
        if value is not None and not 1 <= value <= (1 << 15) - 1:
            yield Problem((*path, field), f"{field} is {value}, expected a number from 1 on")
    for key in topic.configs:
        try:
            plain_configs(Topic(configs={key: topic.configs[key]}))
        except ConfigError as error:
            yield Problem((*path, "configs", key), str(error), at_key=True)


def _acl_problems(path: Path, acl: Acl) -> Iterator[Problem]:
    kind, separator, name = acl.principal.partition(":")
    if not kind or not separator or not name:
        yield Problem((*path, "principal"), f"{acl.principal!r} is no principal, expected one such as User:alice")
    if bool(acl.allow) == bool(acl.deny):
        yield Problem(path, "expected either allow or deny, with a list of operations")
    for field in ("allow", "deny"):
        for index, word in enumerate(getattr(acl, field)):
            yield from _unknown((*path, field, index), word, OPERATIONS)
    given = [one for one in _RESOURCES if getattr(acl, one)]
    if len(given) != 1:
        said = f"has {' and '.join(given)}" if given else "names no resource"
        yield Problem(path, f"{said}, expected one of {', '.join(_RESOURCES)}")


def _quota_problems(path: Path, quota: Quota) -> Iterator[Problem]:
    kinds = [kind for kind, _ in quota.entity]
    if not kinds or ("ip" in kinds and len(kinds) > 1):
        yield Problem(path, "expected user, client_id, both, or ip")
    if not quota.values:
        yield Problem(path, f"has no quota, expected one of {', '.join(QUOTAS)}")
    for name, value in quota.values.items():
        if not value > 0:
            yield Problem((*path, name), f"{name} is {exact(value)}, expected a number above 0")
        elif ("ip" in kinds) != (name == "connection_creation_rate"):
            yield Problem((*path, name), f"{name} is {'not ' if 'ip' in kinds else ''}a quota of addresses alone")


def _unknown(path: Path, word: str, known: Mapping[str, object] | Sequence[str]) -> Iterator[Problem]:
    if word not in known:
        near = difflib.get_close_matches(word, known, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        yield Problem(path, f"{word!r} is unknown; {hint}known are {', '.join(known)}")


def _first_line(path: str) -> str:
    line = _text(path).split("\n", 1)[0].rstrip("\r")
    if not line:
        raise ValueError("has an empty first line, expected the password there")
    return line


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {(error.strerror or str(error)).lower()}"
    return "is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
