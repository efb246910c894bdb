"""Routes for users, rights, quotas, transactions, settings and offsets of groups, as the caller."""

from typing import Annotated, Any, Final, Literal, Protocol

import msgspec

from millstream.admin.as_caller import Edits, change, read
from millstream.admin.declared import Call, Declared
from millstream.admin.routing import HttpError, Right
from millstream.model.access import Operation, ResourceType

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
ResourceName = Literal["topic", "group", "cluster", "transactional-id", "delegation-token", "user"]
PatternName = Literal["literal", "prefixed"]
PermissionName = Literal["allow", "deny"]
OperationName = Literal[
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster-action",
    "describe-configs",
    "alter-configs",
    "idempotent-write",
    "create-tokens",
    "describe-tokens",
    "two-phase-commit",
]


class User(msgspec.Struct, frozen=True):
    """A way in which a user logs in by SCRAM."""

    user: str
    mechanism: str
    iterations: int


class UserList(msgspec.Struct, frozen=True):
    """Users that log in by SCRAM, by name."""

    users: list[User]


class NewPassword(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user's password for one mechanism."""

    password: Text
    iterations: Annotated[int, msgspec.Meta(ge=4096, le=16384)] = 8192

    def __repr__(self) -> str:
        return f"NewPassword({self.iterations})"


class AclEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An access control entry. The name of the cluster is ``kafka-cluster``; ``*`` is every name, or every host."""

    resource: ResourceName
    name: Text
    principal: Text
    operation: OperationName
    permission: PermissionName
    pattern: PatternName = "literal"
    host: Text = "*"


class AclList(msgspec.Struct, frozen=True):
    """Access control entries, by resource."""

    acls: list[AclEntry]


class RemoveAclQuery(msgspec.Struct, frozen=True):
    """The one entry to remove."""

    resource: ResourceName
    name: Text
    principal: Text
    operation: OperationName
    permission: PermissionName
    pattern: PatternName = "literal"
    host: Text = "*"
    dry_run: bool = False

    @property
    def entry(self) -> AclEntry:
        return AclEntry(
            self.resource, self.name, self.principal, self.operation, self.permission, self.pattern, self.host
        )


class Quota(msgspec.Struct, frozen=True):
    """Quotas of an entity: names by ``user``, ``client-id`` or ``ip``; null is the default of the kind."""

    entity: dict[str, str | None]
    values: dict[str, float]


class QuotaList(msgspec.Struct, frozen=True):
    """All quotas."""

    quotas: list[Quota]


class QuotaChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas to set, by Kafka's names; null removes one."""

    entity: Annotated[dict[Literal["user", "client-id", "ip"], str | None], msgspec.Meta(min_length=1)]
    values: Annotated[dict[Text, float | None], msgspec.Meta(min_length=1, max_length=16)]


class Transaction(msgspec.Struct, frozen=True):
    """A transactional id, and the node id of its coordinator."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int


class TransactionList(msgspec.Struct, frozen=True):
    """The transactional ids that the caller may describe, by name."""

    transactions: list[Transaction]


class TransactionsQuery(msgspec.Struct, frozen=True):
    """Parameters of the list."""

    state: str | None = None
    """Only those in this state, as Kafka names it: ``Ongoing``."""


class TransactionPart(msgspec.Struct, frozen=True):
    """A partition of a transaction."""

    topic: str
    partition: int


class DescribedTransaction(msgspec.Struct, frozen=True):
    """A transactional id. ``start_ms`` is -1 while it has no transaction."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: list[TransactionPart]
    """Those of the transaction that have no marker so far."""


class AbortTransaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The transaction that hangs: no coordinator ends it."""

    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    producer_id: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class SettingsQuery(msgspec.Struct, frozen=True):
    """Parameters of a list of settings."""

    all: bool = False
    """Also those from the file, and defaults."""


class Setting(msgspec.Struct, frozen=True):
    """A setting. ``value`` is null for a secret; ``source`` is where it comes from."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool


class SettingList(msgspec.Struct, frozen=True):
    """Settings, by name."""

    settings: list[Setting]


class SettingsChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values to set while brokers run; null takes the own value away."""

    values: Annotated[dict[Text, str | None], msgspec.Meta(min_length=1, max_length=100)]


class BrokerSettingsChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values to set while brokers run; null takes the value away."""

    values: Annotated[dict[Text, str | None], msgspec.Meta(min_length=1, max_length=100)]
    every_broker: bool = True
    """Of the whole cluster; else of this broker alone."""


class GroupMember(msgspec.Struct, frozen=True):
    """A member of a group. ``partitions`` are those that it reads: of a streams group the sources of its tasks."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[TransactionPart]


class DescribedGroup(msgspec.Struct, frozen=True):
    """A group of any kind. ``coordinator`` is a node id. ``members`` is null where the caller may not describe a topic
    that one of them reads.
    """

    group: str
    type: str
    state: str
    coordinator: int
    assignor: str
    members: list[GroupMember] | None


class GroupOffset(msgspec.Struct, frozen=True):
    """Where a group reads on in a partition: its committed offset, or the start of a share group, before which every
    record is finished. ``end_offset`` and ``lag`` are null where the partition is not served. The lag of a share group
    counts the records that are not finished.
    """

    topic: str
    partition: int
    offset: int
    end_offset: int | None
    lag: int | None


class GroupOffsets(msgspec.Struct, frozen=True):
    """Where a group reads on, in the topics that the caller may describe."""

    group: str
    offsets: list[GroupOffset]


class ResetOffsets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a group without members shall read on. An offset outside of a partition means its nearest end."""

    to: Literal["earliest", "latest", "offset", "time"]
    value: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    """The offset, or the time in milliseconds since 1970: the first record at it or after it."""
    topics: dict[Text, list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]]] = {}
    """Partitions by topic; without any, all of the topic; without topics, all in which the group has offsets."""


class ForgetOffsetsQuery(msgspec.Struct, frozen=True):
    """The topic that a group forgets."""

    topic: Text
    dry_run: bool = False


class Acting(Protocol):
    """The cluster as one caller sees it, for one request. Every method raises MillstreamError."""

    def users(self) -> UserList: ...
    def set_password(self, user: str, mechanism: str, wanted: NewPassword, *, dry_run: bool) -> Edits: ...
    def remove_user(self, user: str, mechanism: str, *, dry_run: bool) -> Edits: ...
    def acls(self) -> AclList: ...
    def add_acl(self, entry: AclEntry, *, dry_run: bool) -> Edits: ...
    def remove_acl(self, entry: AclEntry, *, dry_run: bool) -> Edits: ...
    def quotas(self) -> QuotaList: ...
    def set_quotas(self, wanted: QuotaChange, *, dry_run: bool) -> Edits: ...
    def transactions(self, state: str | None) -> TransactionList: ...
    def transaction(self, transactional_id: str) -> DescribedTransaction: ...
    def abort(self, topic: str, wanted: AbortTransaction, *, dry_run: bool) -> Edits: ...
    def settings(self, topic: str | None, *, every: bool) -> SettingList:
        """Of a topic, or of this broker."""
        ...

    def change_settings(
        self, topic: str | None, wanted: SettingsChange | BrokerSettingsChange, *, dry_run: bool
    ) -> Edits: ...
    def group(self, group: str) -> DescribedGroup: ...
    def delete_group(self, group: str, *, dry_run: bool) -> Edits: ...
    def group_offsets(self, group: str) -> GroupOffsets: ...
    def forget_offsets(self, group: str, topic: str, *, dry_run: bool) -> Edits: ...
    def reset_offsets(self, group: str, wanted: ResetOffsets, *, dry_run: bool) -> Edits: ...


def _set_password(acting: Acting, call: Call) -> Edits:
    request = call.request
    if request.in_clear:
        raise HttpError(403, "PASSWORD_IN_CLEAR", "a password from another machine needs http.security.protocol=SSL")
    names = request.variables
    return acting.set_password(names["user"], names["mechanism"], call.body, dry_run=call.query.dry_run)


_DESCRIBE: Final = Right(Operation.DESCRIBE)
_ALTER: Final = Right(Operation.ALTER)
_READ_SETTINGS: Final = Right(Operation.DESCRIBE_CONFIGS)
_ALTER_SETTINGS: Final = Right(Operation.ALTER_CONFIGS)
_READ_TOPIC_SETTINGS: Final = Right(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "topic")
_ALTER_TOPIC_SETTINGS: Final = Right(Operation.ALTER_CONFIGS, ResourceType.TOPIC, "topic")
_DESCRIBE_GROUP: Final = Right(Operation.DESCRIBE, ResourceType.GROUP, "group")
_DELETE_GROUP: Final = Right(Operation.DELETE, ResourceType.GROUP, "group")
_MOVE_GROUP: Final = Right(Operation.READ, ResourceType.GROUP, "group")
_DESCRIBE_TRANSACTION: Final = Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "transactional_id")
_ACL_EXAMPLE: Final = {
    "resource": "topic",
    "name": "orders",
    "principal": "User:alice",
    "operation": "read",
    "permission": "allow",
}

RESOURCE_ROUTES: Final[tuple[Declared[Any], ...]] = (
    read("/v1/users", "Users that log in by SCRAM", _DESCRIBE, lambda acting, _: acting.users(), UserList),
    change(
        "PUT",
        "/v1/users/{user}/{mechanism}",
        "Create a user, or give it another password; over TLS or from the broker's machine",
        _ALTER,
        _set_password,
        NewPassword,
        {"password": "correct horse battery staple"},
    ),
    change(
        "DELETE",
        "/v1/users/{user}/{mechanism}",
        "Remove a way in which a user logs in; its open connections stay",
        _ALTER,
        lambda acting, call: acting.remove_user(
            call.request.variables["user"], call.request.variables["mechanism"], dry_run=call.query.dry_run
        ),
    ),
    read("/v1/acls", "Access control entries", _DESCRIBE, lambda acting, _: acting.acls(), AclList),
    change(
        "POST",
        "/v1/acls",
        "Add an access control entry",
        _ALTER,
        lambda acting, call: acting.add_acl(call.body, dry_run=call.query.dry_run),
        AclEntry,
        _ACL_EXAMPLE,
    ),
    change(
        "DELETE",
        "/v1/acls",
        "Remove exactly one access control entry",
        _ALTER,
        lambda acting, call: acting.remove_acl(call.query.entry, dry_run=call.query.dry_run),
        query=RemoveAclQuery,
    ),
    read("/v1/quotas", "Quotas", _READ_SETTINGS, lambda acting, _: acting.quotas(), QuotaList),
    change(
        "POST",
        "/v1/quotas",
        "Set or remove quotas of an entity",
        _ALTER_SETTINGS,
        lambda acting, call: acting.set_quotas(call.body, dry_run=call.query.dry_run),
        QuotaChange,
        {"entity": {"user": "alice"}, "values": {"producer_byte_rate": 1048576}},
    ),
    read(
        "/v1/transactions",
        "Transactional ids of the cluster",
        _DESCRIBE,
        lambda acting, call: acting.transactions(call.query.state),
        TransactionList,
        TransactionsQuery,
    ),
    read(
        "/v1/transactions/{transactional_id}",
        "A transactional id and its transaction",
        _DESCRIBE_TRANSACTION,
        lambda acting, call: acting.transaction(call.request.variables["transactional_id"]),
        DescribedTransaction,
    ),
    change(
        "POST",
        "/v1/topics/{topic}/transactions/abort",
        "Abort a transaction that hangs in a partition: one that no coordinator ends",
        _ALTER,
        lambda acting, call: acting.abort(call.request.variables["topic"], call.body, dry_run=call.query.dry_run),
        AbortTransaction,
        {"partition": 0, "producer_id": 4711},
    ),
    read(
        "/v1/settings",
        "Settings of this broker, those of the whole cluster among them",
        _READ_SETTINGS,
        lambda acting, call: acting.settings(None, every=call.query.all),
        SettingList,
        SettingsQuery,
    ),
    change(
        "POST",
        "/v1/settings",
        "Set or remove settings of brokers while they run",
        _ALTER_SETTINGS,
        lambda acting, call: acting.change_settings(None, call.body, dry_run=call.query.dry_run),
        BrokerSettingsChange,
        {"values": {"log.retention.ms": "604800000"}},
    ),
    read(
        "/v1/topics/{topic}/settings",
        "Settings of a topic",
        _READ_TOPIC_SETTINGS,
        lambda acting, call: acting.settings(call.request.variables["topic"], every=call.query.all),
        SettingList,
        SettingsQuery,
    ),
    change(
        "POST",
        "/v1/topics/{topic}/settings",
        "Set or remove settings of a topic",
        _ALTER_TOPIC_SETTINGS,
        lambda acting, call: acting.change_settings(
            call.request.variables["topic"], call.body, dry_run=call.query.dry_run
        ),
        SettingsChange,
        {"values": {"retention.ms": "604800000"}},
    ),
    read(
        "/v1/groups/{group}",
        "A group of any kind, with its members",
        _DESCRIBE_GROUP,
        lambda acting, call: acting.group(call.request.variables["group"]),
        DescribedGroup,
    ),
    change(
        "DELETE",
        "/v1/groups/{group}",
        "Delete a group of any kind that has no members, with its offsets",
        _DELETE_GROUP,
        lambda acting, call: acting.delete_group(call.request.variables["group"], dry_run=call.query.dry_run),
    ),
    read(
        "/v1/groups/{group}/offsets",
        "Where a group of any kind reads on, and its lag",
        _DESCRIBE_GROUP,
        lambda acting, call: acting.group_offsets(call.request.variables["group"]),
        GroupOffsets,
    ),
    change(
        "POST",
        "/v1/groups/{group}/offsets",
        "Move a group of any kind that has no members to other offsets",
        _MOVE_GROUP,
        lambda acting, call: acting.reset_offsets(
            call.request.variables["group"], call.body, dry_run=call.query.dry_run
        ),
        ResetOffsets,
        {"to": "earliest", "topics": {"orders": [0, 1]}},
    ),
    change(
        "DELETE",
        "/v1/groups/{group}/offsets",
        "Let a group of any kind forget where it reads on in a topic that no member reads",
        _DELETE_GROUP,
        lambda acting, call: acting.forget_offsets(
            call.request.variables["group"], call.query.topic, dry_run=call.query.dry_run
        ),
        query=ForgetOffsetsQuery,
    ),
)
"""Every route of this page."""
