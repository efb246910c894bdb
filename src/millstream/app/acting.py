"""The broker as a client of its own cluster, in the name of one caller over HTTP, for one request.

::

    thread of a request ──► a connection that is the caller's ──► a shard of this broker (rights, audit as for clients)

A request that any broker answers goes to this one. What only another broker can answer (the coordinator of a group,
the leader of a partition) needs a way to all of them; without one it is refused with the reason, before anything is
changed. Each request has connections of its own, which end with it.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import msgspec

from millstream.admin import resources, topics
from millstream.admin.as_caller import Edit, Edits
from millstream.admin.callers import check_needs
from millstream.admin.routing import Caller, Need, Request
from millstream.app.own_way import NO_WAY, Connect, OwnWay
from millstream.client import group_offsets, rights, settings, share_groups, transactions
from millstream.client.cluster import BROKER_RESOURCE, TOPIC_RESOURCE, Cluster, TopicPartition
from millstream.client.rights import Acl, Credential, Entity
from millstream.client.security import Login
from millstream.config.settings import Settings
from millstream.console import changes, facts, shares
from millstream.console.facts import Group, Member
from millstream.errors import Rejected, Retriable, Unavailable
from millstream.model.access import Operation, PatternType, Permission, ResourceType, by_name, name_of
from millstream.model.error_code import ErrorCode
from millstream.model.principal import ANONYMOUS
from millstream.wire.messages.metadata import MetadataResponseTopic
from millstream.wire.sasl import ON_BEHALF

TIMEOUT_S: Final = 8.0
"""Less than the broker's own patience with a silent client over HTTP."""

_TYPES: Final = by_name(ResourceType)
_PATTERNS: Final = by_name(PatternType)
_PERMISSIONS: Final = by_name(Permission)
_OPERATIONS: Final = by_name(Operation)
_HIDDEN: Final = "(secret)"
_CLIENT_ID: Final = "millstream-http"


class ActingCluster:
    """The cluster as one caller sees it. Belongs to the thread of one request. As ``admin.resources.Acting`` and
    ``admin.topics.ActingTopics``.
    """

    def __init__(
        self, here: Cluster, everywhere: Callable[[], Cluster], node_id: int, demand: Callable[[Sequence[Need]], None]
    ) -> None:
        """``here`` reaches this broker, which is ``node_id``; ``everywhere`` all brokers, or it raises Unavailable.
        ``demand`` raises HttpError if the caller lacks a right.
        """
        self._demand = demand
        self._here = here
        self._everywhere = everywhere
        self._node = str(node_id)

    # Topics

    def topic(self, topic: str) -> topics.DescribedTopic:
        with self._everywhere() as cluster:
            snapshot = facts.take_snapshot(cluster, [topic])
            found = _topic(snapshot, topic)
            spans = facts.spans(cluster, snapshot, [topic])
        return topics.DescribedTopic(
            topic,
            found.is_internal,
            [
                topics.DescribedPartition(
                    one.partition_index,
                    one.leader_id,
                    one.replica_nodes,
                    one.isr_nodes,
                    *spans.get((topic, one.partition_index), (None, None)),
                )
                for one in sorted(found.partitions, key=lambda one: one.partition_index)
            ],
        )

    def create_topic(self, topic: str, wanted: topics.NewTopic, *, dry_run: bool) -> Edits:
        asked = changes.NewTopic(topic, wanted.partitions or -1, wanted.replicas or -1, wanted.settings)
        made = changes.create_topic(self._here, asked, check=dry_run)
        after = {
            "partitions": made.num_partitions,
            "replicas": made.replication_factor,
            "settings": dict(wanted.settings),
        }
        return Edits(dry_run, [Edit("create", f"topic {topic}", None, after)])

    def delete_topic(self, topic: str, *, dry_run: bool) -> Edits:
        found = _topic(facts.take_snapshot(self._here, [topic]), topic)
        if not dry_run:
            changes.delete_topic(self._here, topic)
        return Edits(dry_run, [Edit("remove", f"topic {topic}", {"partitions": len(found.partitions)})])

    def add_partitions(self, topic: str, count: int, *, dry_run: bool) -> Edits:
        before = len(_topic(facts.take_snapshot(self._here, [topic]), topic).partitions)
        if count == before:
            return Edits(dry_run, [])
        changes.add_partitions(self._here, topic, count, check=dry_run)
        return Edits(dry_run, [Edit("replace", f"partitions of topic {topic}", before, count)])

    def trim(self, topic: str, before: dict[int, int], *, dry_run: bool) -> Edits:
        with self._everywhere() as cluster:
            snapshot = facts.take_snapshot(cluster, [topic])
            known = {one.partition_index for one in _topic(snapshot, topic).partitions}
            spans = facts.spans(cluster, snapshot, [topic])
            wanted: dict[TopicPartition, int] = {}
            for number, offset in sorted(before.items()):
                if number not in known:
                    raise _no_partition((topic, number))
                span = spans.get((topic, number))
                if span is None:
                    raise Unavailable(f"{topic}-{number} has no leader now", ErrorCode.LEADER_NOT_AVAILABLE)
                if offset > span.end:
                    raise Rejected(f"{topic}-{number} ends at offset {span.end}", ErrorCode.OFFSET_OUT_OF_RANGE)
                if offset > span.start:
                    wanted[topic, number] = offset
            if not dry_run:
                changes.delete_records(cluster, wanted)
        starts = {place: spans[place].start for place in wanted}
        return Edits(
            dry_run,
            [Edit("replace", f"start of {place[0]}-{place[1]}", starts[place], wanted[place]) for place in wanted],
        )

    # Users

    def users(self) -> resources.UserList:
        return resources.UserList([resources.User(*one) for one in self._users()])

    def set_password(self, user: str, mechanism: str, wanted: resources.NewPassword, *, dry_run: bool) -> Edits:
        rights.check_credential(user, mechanism, wanted.password, wanted.iterations)
        before = self._credential(user, mechanism)
        if not dry_run:
            connection = self._here.any_connection()
            rights.set_password(connection, user, mechanism, wanted.password, wanted.iterations)
        after = resources.User(user, mechanism, wanted.iterations)
        return Edits(dry_run, [Edit("replace" if before else "create", f"user {user}", before, after)])

    def remove_user(self, user: str, mechanism: str, *, dry_run: bool) -> Edits:
        before = self._credential(user, mechanism)
        if before is None:
            raise Rejected(f"user {user} does not log in by {mechanism}", ErrorCode.RESOURCE_NOT_FOUND)
        if not dry_run:
            rights.remove_credential(self._here.any_connection(), user, mechanism)
        return Edits(dry_run, [Edit("remove", f"user {user}", before)])

    def _users(self) -> list[Credential]:
        return self._here.insist("users", lambda: rights.read_users(self._here.any_connection()))

    def _credential(self, user: str, mechanism: str) -> resources.User | None:
        found = (one for one in self._users() if (one.user, one.mechanism) == (user, mechanism))
        return next((resources.User(*one) for one in found), None)

    # Access control entries

    def acls(self) -> resources.AclList:
        return resources.AclList([_shown(one) for one in self._acls()])

    def add_acl(self, entry: resources.AclEntry, *, dry_run: bool) -> Edits:
        if _numbers(entry) in self._acls():
            return Edits(dry_run, [])
        if not dry_run:
            rights.add_acls(self._here.any_connection(), [_numbers(entry)])
        return Edits(dry_run, [Edit("create", "access control entry", None, entry)])

    def remove_acl(self, entry: resources.AclEntry, *, dry_run: bool) -> Edits:
        if _numbers(entry) not in self._acls():
            return Edits(dry_run, [])
        if not dry_run:
            rights.remove_acl(self._here.any_connection(), _numbers(entry))
        return Edits(dry_run, [Edit("remove", "access control entry", entry)])

    def _acls(self) -> list[Acl]:
        return self._here.insist("access control entries", lambda: rights.read_acls(self._here.any_connection()))

    # Quotas

    def quotas(self) -> resources.QuotaList:
        return resources.QuotaList([resources.Quota(dict(entity), values) for entity, values in self._quotas().items()])

    def set_quotas(self, wanted: resources.QuotaChange, *, dry_run: bool) -> Edits:
        entity = rights.entity_of(wanted.entity)
        before = self._quotas().get(entity, {})
        rights.set_quotas(self._here.any_connection(), entity, wanted.values, check=dry_run)
        whose = ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity)
        return Edits(dry_run, list(_differences(whose, before, wanted.values)))

    def _quotas(self) -> dict[Entity, dict[str, float]]:
        return self._here.insist("quotas", lambda: rights.read_quotas(self._here.any_connection()))

    # Transactions

    def transactions(self, state: str | None) -> resources.TransactionList:
        states = [] if state is None else [state]
        with self._everywhere() as cluster:
            found = transactions.list_transactions(cluster, states)
        return resources.TransactionList([resources.Transaction(*one) for one in found])

    def transaction(self, transactional_id: str) -> resources.DescribedTransaction:
        with self._everywhere() as cluster:
            found = transactions.describe_transaction(cluster, transactional_id)
        parts = [resources.TransactionPart(*place) for place in found.topic_partitions]
        return resources.DescribedTransaction(*found[:-1], parts)

    def abort(self, topic: str, wanted: resources.AbortTransaction, *, dry_run: bool) -> Edits:
        place = topic, wanted.partition
        with self._everywhere() as cluster:
            known = cluster.metadata([topic]).topics.get(topic)
            if known is None or known.error_code or wanted.partition not in known.partitions:
                raise _no_partition(place)
            found = transactions.hanging_in(cluster, *place, wanted.producer_id)
            if not dry_run:
                transactions.abort_in(cluster, *place, found)
        before = {"producer_epoch": found.producer_epoch, "start_offset": found.current_txn_start_offset}
        what = f"transaction of producer {wanted.producer_id} in {topic}-{wanted.partition}"
        return Edits(dry_run, [Edit("remove", what, before)])

    # Settings

    def settings(self, topic: str | None, *, every: bool) -> resources.SettingList:
        found = self._settings(topic)
        return resources.SettingList(
            [
                resources.Setting(
                    one.name,
                    None if one.is_sensitive else one.value,
                    settings.SOURCES.get(one.config_source, str(one.config_source)),
                    one.read_only,
                    one.is_sensitive,
                )
                for one in found
                if every or one.config_source in settings.SET_WHILE_RUNNING
            ]
        )

    def change_settings(
        self, topic: str | None, wanted: resources.SettingsChange | resources.BrokerSettingsChange, *, dry_run: bool
    ) -> Edits:
        known = {one.name: one for one in self._settings(topic)}
        for key, value in wanted.values.items():
            if key not in known and value is not None:  # Kafka's API lets brokers keep any name
                raise Rejected(f"there is no setting {key}", ErrorCode.INVALID_CONFIG)
        connection = self._here.any_connection()
        if topic is not None:
            kind, name, source = TOPIC_RESOURCE, topic, 1
        else:
            assert isinstance(wanted, resources.BrokerSettingsChange)
            kind, name, source = BROKER_RESOURCE, "" if wanted.every_broker else self._node, 2 + wanted.every_broker
        settings.change_settings(connection, kind, name, wanted.values, check=dry_run)
        secret = {key for key, one in known.items() if one.is_sensitive}
        before = {key: one.value for key, one in known.items() if one.config_source == source and one.value is not None}
        whose = f"topic {topic}" if topic is not None else f"broker {name}" if name else "every broker"
        return Edits(dry_run, list(_differences(whose, before, wanted.values, secret)))

    def _settings(self, topic: str | None) -> list[Any]:
        if topic is not None:
            return self._of_a_topic(topic)
        connection = self._here.any_connection()
        return settings.read_settings(connection, BROKER_RESOURCE, self._node)

    def _of_a_topic(self, topic: str) -> list[Any]:
        try:
            return settings.read_settings(self._here.any_connection(), TOPIC_RESOURCE, topic)
        except Retriable as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # a producer would ask again
                raise Rejected(f"there is no topic {topic}", error.code) from None
            raise

    # Groups

    def group(self, group: str) -> resources.DescribedGroup:
        with self._everywhere() as cluster:
            known = _found(cluster, group)
            described = shares.described(cluster, known)
        members = None
        if described is not None:
            members = [
                resources.GroupMember(
                    one.member_id,
                    one.instance_id,
                    one.client_id,
                    one.host,
                    [resources.TransactionPart(*place) for place in one.assigned],
                )
                for one in described.members
            ]
        return resources.DescribedGroup(
            group,
            known.kind,
            known.state,
            known.coordinator,
            "" if described is None else described.assignor,
            members,
        )

    def delete_group(self, group: str, *, dry_run: bool) -> Edits:
        with self._everywhere() as cluster:
            known = _without_members(_found(cluster, group))
            before = len(shares.positions(cluster, known))
            if not dry_run:
                group_offsets.delete_group(cluster, group)
        return Edits(dry_run, [Edit("remove", f"{known.kind} group {group}", {"offsets": before})])

    def group_offsets(self, group: str) -> resources.GroupOffsets:
        with self._everywhere() as cluster:
            known = facts.find_group(cluster, group)
            if known is None:
                return resources.GroupOffsets(group, [])
            lags = shares.lags_of(cluster, known)
        return resources.GroupOffsets(
            group,
            [
                resources.GroupOffset(
                    lag.topic, lag.partition, lag.committed, *((None, None) if lag.end < 0 else (lag.end, lag.records))
                )
                for lag in lags
            ],
        )

    def reset_offsets(self, group: str, wanted: resources.ResetOffsets, *, dry_run: bool) -> Edits:
        with self._everywhere() as cluster:
            known = facts.find_group(cluster, group)
            before = {} if known is None else shares.positions(cluster, _without_members(known))
            places = self._places(cluster, wanted.topics) if wanted.topics else sorted(before)
            if not places:
                raise Rejected(f"group {group} has no offsets: name topics")
            self._demand_read(places)
            target = group_offsets.offsets_at(cluster, places, wanted.to, wanted.value)
            changed = {place: offset for place, offset in target.items() if before.get(place) != offset}
            if changed and not dry_run:
                shares.move(cluster, group, "" if known is None else known.kind, changed)
        return Edits(
            dry_run,
            [
                Edit(
                    "replace" if place in before else "create",
                    f"{place[0]}-{place[1]}",
                    before.get(place),
                    changed[place],
                )
                for place in sorted(changed)
            ],
        )

    def forget_offsets(self, group: str, topic: str, *, dry_run: bool) -> Edits:
        with self._everywhere() as cluster:
            known = _found(cluster, group)
            before = {place: at for place, at in shares.positions(cluster, known).items() if place[0] == topic}
            self._demand_read([(topic, 0)])
            if known.kind == shares.SHARE:
                _without_members(known)
            elif any(place[0] == topic for one in _members(cluster, known) for place in one.assigned):
                raise Rejected(f"group {group} reads topic {topic} now", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            if before and not dry_run:
                if known.kind == shares.SHARE:
                    share_groups.forget_topics(cluster, group, [topic])
                else:
                    group_offsets.delete_offsets(cluster, group, before)
        return Edits(dry_run, [Edit("remove", f"{place[0]}-{place[1]}", before[place]) for place in sorted(before)])

    def _demand_read(self, places: Iterable[TopicPartition]) -> None:
        """Before the broker changes some of them."""
        topics = sorted({topic for topic, _ in places})
        self._demand([Need(Operation.READ, ResourceType.TOPIC, topic) for topic in topics])

    def _places(self, cluster: Cluster, topics: dict[str, list[int]]) -> list[TopicPartition]:
        found = cluster.metadata(list(topics)).topics
        places: list[TopicPartition] = []
        for topic, numbers in topics.items():
            known = found.get(topic)
            if known is None or known.error_code:
                raise Rejected(f"there is no topic {topic}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            places += [(topic, number) for number in numbers or known.partitions]
            for number in numbers:
                if number not in known.partitions:
                    raise _no_partition((topic, number))
        return sorted(set(places))


def _no_partition(place: TopicPartition) -> Rejected:
    return Rejected(f"there is no partition {place[0]}-{place[1]}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _topic(snapshot: facts.Snapshot, topic: str) -> MetadataResponseTopic:
    found = snapshot.topics.get(topic)
    if found is None or found.error_code:
        raise Rejected(f"there is no topic {topic}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return found


def _found(cluster: Cluster, group: str) -> Group:
    known = facts.find_group(cluster, group)
    if known is None:
        raise Rejected(f"there is no group {group}", ErrorCode.GROUP_ID_NOT_FOUND)
    return known


def _members(cluster: Cluster, group: Group) -> Sequence[Member]:
    described = shares.described(cluster, group)
    return () if described is None else described.members


def _without_members(group: Group) -> Group:
    """The group, if the broker would change it: a dry run is refused as the change itself."""
    if group.state not in ("Empty", "Dead"):
        raise Rejected(
            f"group {group.group_id} has members (its state is {group.state}): stop them first",
            ErrorCode.NON_EMPTY_GROUP,
        )
    return group


class ActingClients:
    """Makes an ``ActingCluster`` for each request. Shared by the HTTP threads."""

    def __init__(self, settings: Settings, way: OwnWay, connect: Connect) -> None:
        """``connect`` makes a connection to this broker that acts as a caller; ``way`` is that to all brokers of a
        cluster.
        """
        self._single = settings.peer_listen is None
        self._node_id = settings.node_id
        self._way = way
        self._connect = connect

    @contextmanager
    def of(self, request: Request) -> Generator[ActingCluster]:
        """The cluster as the caller of a request."""
        principal = ANONYMOUS if request.caller is None else request.caller.principal
        with Cluster(
            "",
            client_id=_CLIENT_ID,
            timeout_s=TIMEOUT_S,
            dial=lambda: self._connect(principal, request.client_host, request.over_tls),
        ) as here:
            everywhere = (lambda: here) if self._single else partial(self._every_broker, principal, request.client_host)
            yield ActingCluster(here, everywhere, self._node_id, partial(_demand, request.caller))

    def _every_broker(self, principal: str, host: str) -> Cluster:
        """All brokers, as the caller."""
        way = self._way
        if not way.bootstrap:
            raise Unavailable(f"no other broker is asked for a caller: {NO_WAY}")
        security = way.security
        if security.opening:
            login = Login(ON_BEHALF, principal.removeprefix("User:"), host=host)
            security = msgspec.structs.replace(security, login=login)
        return Cluster(way.bootstrap, client_id=_CLIENT_ID, timeout_s=TIMEOUT_S, security=security)


def _demand(caller: Caller | None, needs: Sequence[Need]) -> None:
    if caller is not None:
        check_needs(caller.principal, needs, caller.allowed(needs))


def _numbers(entry: resources.AclEntry) -> Acl:
    return Acl(
        _TYPES[entry.resource],
        _PATTERNS[entry.pattern],
        entry.name,
        entry.principal,
        entry.host,
        _OPERATIONS[entry.operation],
        _PERMISSIONS[entry.permission],
    )


def _shown(acl: Acl) -> resources.AclEntry:
    """Entries that brokers store have numbers that are known here."""
    names: list[Any] = [
        name_of(table, number)
        for table, number in (
            (_TYPES, acl.resource_type),
            (_OPERATIONS, acl.operation),
            (_PERMISSIONS, acl.permission),
            (_PATTERNS, acl.pattern_type),
        )
    ]
    kind, operation, permission, pattern = names
    return resources.AclEntry(kind, acl.name, acl.principal, operation, permission, pattern, acl.host)


def _differences(
    whose: str, before: dict[str, Any], wanted: dict[str, Any], secret: Iterable[str] = ()
) -> Generator[Edit]:
    """The edits of values by name; None takes one away."""
    for key, value in wanted.items():
        old = before.get(key)
        what = f"{key} of {whose}"
        shown = _HIDDEN if key in secret and value is not None else value
        if value is None and old is not None:
            yield Edit("remove", what, old)
        elif value is not None and (value != old or key in secret):
            yield Edit("create" if old is None else "replace", what, old, shown)
