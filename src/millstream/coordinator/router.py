"""GroupRouter: requests about groups, for handlers on any shard.

::

    handler ─► router ─► the partition that keeps the group ─► here: LocalGroups
                                                            └► elsewhere: one call through the mailbox, and its answer
                                                            back

The partition is Kafka's hash of the group id. ``__consumer_offsets`` is created when a client first looks for a
coordinator. While it does not exist, or its partition is not served, requests are refused with NOT_COORDINATOR, after
which clients look for the coordinator again.

A parked JoinGroup or SyncGroup occupies one call until the rebalance ends, which the core bounds. If the other shard
does not accept the call (overload), the client gets COORDINATOR_NOT_AVAILABLE and retries.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from millstream.cluster.metadata import MetadataListener
from millstream.cluster.topic_table import TopicMeta
from millstream.coordinator.asks import (
    ASK,
    DESCRIBE,
    JOIN_GROUP,
    LIST,
    SYNC_GROUP,
    Ask,
    DescribeAsk,
    Described,
    ListAsk,
    Listed,
    decode_answer,
    decode_ask,
    decode_describe_ask,
    decode_described,
    decode_list_ask,
    decode_listed,
    decode_request,
    encode,
    encode_answer,
)
from millstream.coordinator.groups_partition import Done, OffsetsPartition
from millstream.coordinator.hashing import OFFSETS_TOPIC
from millstream.coordinator.local_groups import LocalGroups
from millstream.coordinator.state_topic import StateTopic
from millstream.coordinator.topics_view import MayDescribe, MetadataTopics, everybody_may
from millstream.core.group.outputs import (
    ConsumerSettings,
    GroupSettings,
    ShareSettings,
    StreamsSettings,
)
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.model.events import data_topic_id, data_topic_name
from millstream.model.quantities import ApiKey, ApiVersion
from millstream.wire.messages.describe_groups import DescribedGroup
from millstream.wire.messages.list_groups import ListedGroup
from millstream.wire.schema import Message

if TYPE_CHECKING:
    from millstream.cluster.client import ControllerClient
    from millstream.cluster.metadata import MetadataCache
    from millstream.config.settings import Settings
    from millstream.shard.context import Shard
    from millstream.shard.mailbox import Reply

_TIMEOUT_US: Final = 30_000_000

DESCRIBED_AT_ONCE: Final = 64
"""Groups in one response between shards, whose size is bounded. One group has some megabytes at most."""

_PARKED_TIMEOUT_US: Final = 24 * 3600 * 1_000_000
"""Timeout of joins and syncs between shards. The group's own deadlines end them; this bounds the cost of a defect."""


class Table(Protocol):
    """The part of ``partition.append.internal.InternalLogs`` that is used here."""

    def on_open(self, callback: Callable[[OffsetsPartition], None]) -> None: ...

    def on_close(self, callback: Callable[[OffsetsPartition], None]) -> None: ...


class _Deletions(MetadataListener):
    """Reports deleted topics to the groups of this shard."""

    def __init__(self, local: LocalGroups) -> None:
        self._local = local

    def topic_deleted(self, topic: TopicMeta) -> None:
        if topic.name != OFFSETS_TOPIC:
            self._local.topic_deleted(topic.name, topic.topic_id)
            if topic.configs.get("topic.kind") == "events":
                self._local.topic_deleted(data_topic_name(topic.name), data_topic_id(topic.topic_id))


class _LiveSettings(MetadataListener):
    """The broker's settings of groups that change while it runs, in ``values``."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def settings_changed(self, settings: "Settings") -> None:
        self.values["group.consumer.assignment.interval.ms"] = settings.group_consumer_assignment_interval_ms
        self.values["group.share.assignment.interval.ms"] = settings.group_share_assignment_interval_ms
        self.values["group.streams.assignment.interval.ms"] = settings.group_streams_assignment_interval_ms


class GroupRouter:
    """Routes requests about groups to the shard of their coordinator.

    Lifecycle: one per shard, built before the mailbox runs and before partitions open. ``stop`` when the broker drains.
    """

    def __init__(
        self,
        shard: "Shard",
        settings: "Settings",
        metadata: "MetadataCache",
        controller: "ControllerClient",
        table: Table,
        may_describe: MayDescribe = everybody_may,
    ) -> None:
        """``may_describe`` says which topics the expressions of a client match."""
        self._shard = shard
        self._topic = StateTopic(OFFSETS_TOPIC, metadata, controller, shard.reactor)
        topics = MetadataTopics(metadata, may_describe)
        metadata.subscribe(topics)
        interval_ms = settings.offsets_retention_check_interval_ms
        live = _LiveSettings()
        live.settings_changed(metadata.settings)
        metadata.subscribe(live)
        of_groups = group_settings(settings, metadata.group_configs, live.values)
        self.local = LocalGroups(shard, of_groups, interval_ms, topics)
        mailbox = shard.mailbox
        mailbox.serve(ASK, self._serve_ask)
        mailbox.serve(LIST, self._serve_list)
        mailbox.serve(DESCRIBE, self._serve_describe)
        table.on_open(self._opened)
        table.on_close(self._closed)
        metadata.subscribe(_Deletions(self.local))

    def stop(self) -> None:
        """Refuse every request that waits on this shard."""
        self.local.stop()

    def when_loaded(self, done: Callable[[], None]) -> None:
        """Call ``done`` when the groups that this shard has opened are loaded. Until then clients are refused
        retriably.
        """
        self.local.when_loaded(done)

    def _opened(self, partition: OffsetsPartition) -> None:
        if partition.name == OFFSETS_TOPIC:
            self.local.opened(partition)

    def _closed(self, partition: OffsetsPartition) -> None:
        if partition.name == OFFSETS_TOPIC:
            self.local.closed(partition)

    # Finding

    def ensure(self, done: Callable[[ErrorCode], None]) -> None:
        """Call ``done(NONE)`` when there is a coordinator. Creates ``__consumer_offsets`` if necessary."""
        self._topic.ensure(done)

    # Requests for one group

    def home_of(self, group_id: str) -> int | None:
        """The shard that coordinates a group; None if this broker has none that does."""
        return self._topic.place(group_id)[1]

    def ask(
        self,
        group_id: str,
        api: ApiKey,
        version: ApiVersion,
        client_id: str | None,
        host: str,
        request: Message,
        done: Done,
        *,
        require_stable: bool = False,
        principal: str = "",
    ) -> None:
        """Pass ``request`` to the coordinator of its group. ``done`` gets the response or the code that refuses it.
        ``principal`` is the client, for a request after which topics are sought.
        """
        partition, home = self._topic.place(group_id)
        if home is None:
            done(ErrorCode.NOT_COORDINATOR)
            return
        body = b"" if home == self._shard.id else encode(request)
        ask = Ask(api, partition, version, client_id or "", f"/{host}", require_stable, body, principal)
        if home == self._shard.id:
            self.local.ask(ask, request, done)
            return

        def answered(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                done(decode_answer(api, answer))

        timeout_us = _PARKED_TIMEOUT_US if api in (JOIN_GROUP, SYNC_GROUP) else _TIMEOUT_US
        self._shard.mailbox.call(home, ASK, encode(ask), answered, timeout_us)

    def _serve_ask(self, sender: int, payload: bytes, reply: "Reply") -> None:
        _ = sender
        ask = decode_ask(payload)
        self.local.ask(ask, decode_request(ask.api, ask.body), lambda answer: reply.send(encode_answer(answer)))

    # All groups

    def list_groups(
        self, states: list[str], types: list[str], done: Callable[[ErrorCode, list[ListedGroup]], None]
    ) -> None:
        """The groups of this broker that pass the filters; an error if a shard did not answer or is still loading."""
        gather = _Gather(self._shard.count, done)
        for shard in range(self._shard.count):
            if shard == self._shard.id:
                gather.take(*self.local.list(states, types))
            else:
                self._shard.mailbox.call(shard, LIST, encode(ListAsk(states, types)), gather.take_bytes, _TIMEOUT_US)

    def _serve_list(self, sender: int, payload: bytes, reply: "Reply") -> None:
        _ = sender
        ask = decode_list_ask(payload)
        error, groups = self.local.list(ask.states, ask.types)
        reply.send(encode(Listed(int(error), groups)))

    def describe_groups(
        self, group_ids: list[str], version: ApiVersion, done: Callable[[list[DescribedGroup]], None]
    ) -> None:
        """Each group as its coordinator describes it, in the order of the request. Other shards are asked for a few at
        a time.
        """
        results: list[DescribedGroup] = [DescribedGroup(group_id=group_id) for group_id in group_ids]
        elsewhere: dict[int, list[tuple[int, int, str]]] = {}
        for slot, group_id in enumerate(group_ids):
            partition, home = self._topic.place(group_id)
            if home is None:
                results[slot] = DescribedGroup(group_id=group_id, error_code=ErrorCode.NOT_COORDINATOR)
            elif home == self._shard.id:
                results[slot] = self.local.describe(partition, group_id, version)
            else:
                elsewhere.setdefault(home, []).append((slot, partition, group_id))
        missing = len(elsewhere) + 1

        def settled() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                done(results)

        for shard, wanted in elsewhere.items():
            self._describe_elsewhere(shard, wanted, version, results, settled)
        settled()

    def _describe_elsewhere(
        self,
        shard: int,
        wanted: list[tuple[int, int, str]],
        version: int,
        results: list[DescribedGroup],
        done: Callable[[], None],
    ) -> None:
        """Fill the slots of ``wanted`` (slot, partition, group id), ``DESCRIBED_AT_ONCE`` at a time."""
        part, rest = wanted[:DESCRIBED_AT_ONCE], wanted[DESCRIBED_AT_ONCE:]

        def answered(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                groups = [DescribedGroup(group_id=group_id, error_code=code) for _, _, group_id in part]
            else:
                groups = decode_described(answer).groups
            for (slot, _, _), group in zip(part, groups, strict=True):
                results[slot] = group
            if rest:
                self._describe_elsewhere(shard, rest, version, results, done)
            else:
                done()

        ask = DescribeAsk(version, [(partition, group_id) for _, partition, group_id in part])
        self._shard.mailbox.call(shard, DESCRIBE, encode(ask), answered, _TIMEOUT_US)

    def _serve_describe(self, sender: int, payload: bytes, reply: "Reply") -> None:
        _ = sender
        ask = decode_describe_ask(payload)
        described = [self.local.describe(partition, group_id, ask.version) for partition, group_id in ask.groups]
        reply.send(encode(Described(described)))


class _Gather:
    """Collects the group lists of all shards."""

    __slots__ = ("_done", "_error", "_groups", "_missing")

    def __init__(self, shards: int, done: Callable[[ErrorCode, list[ListedGroup]], None]) -> None:
        self._missing = shards
        self._error = ErrorCode.NONE
        self._groups: list[ListedGroup] = []
        self._done = done

    def take_bytes(self, answer: bytes | MillstreamError) -> None:
        if isinstance(answer, MillstreamError):
            self.take(ErrorCode.COORDINATOR_NOT_AVAILABLE, [])
        else:
            listed = decode_listed(answer)
            self.take(ErrorCode(listed.error), listed.groups)

    def take(self, error: ErrorCode, groups: list[ListedGroup]) -> None:
        if error is not ErrorCode.NONE:
            self._error = error
        self._groups += groups
        self._missing -= 1
        if not self._missing:
            self._done(self._error, [] if self._error is not ErrorCode.NONE else self._groups)


def group_settings(
    settings: "Settings", of_groups: Mapping[str, Mapping[str, int]], live: Mapping[str, int]
) -> GroupSettings:
    """The part of the node's settings that group decisions need. Single groups' properties and ``live`` settings
    follow changes.
    """
    return GroupSettings(
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        max_size=settings.group_max_size,
        offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
        consumer=ConsumerSettings(
            session_timeout_ms=settings.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
            max_size=settings.group_consumer_max_size,
            assignors=settings.group_consumer_assignors,
            migration_policy=settings.group_consumer_migration_policy,
            assignment_interval_ms=settings.group_consumer_assignment_interval_ms,
            regex_refresh_interval_ms=settings.group_consumer_regex_refresh_interval_ms,
            of_groups=of_groups,
            live=live,
        ),
        share=ShareSettings(
            session_timeout_ms=settings.group_share_session_timeout_ms,
            heartbeat_interval_ms=settings.group_share_heartbeat_interval_ms,
            max_size=settings.group_share_max_size,
            assignor=settings.group_share_assignors[0],
            assignment_interval_ms=settings.group_share_assignment_interval_ms,
            of_groups=of_groups,
            live=live,
        ),
        streams=StreamsSettings(
            session_timeout_ms=settings.group_streams_session_timeout_ms,
            heartbeat_interval_ms=settings.group_streams_heartbeat_interval_ms,
            max_size=settings.group_streams_max_size,
            num_standby_replicas=settings.group_streams_num_standby_replicas,
            initial_rebalance_delay_ms=settings.group_streams_initial_rebalance_delay_ms,
            assignment_interval_ms=settings.group_streams_assignment_interval_ms,
            of_groups=of_groups,
            live=live,
        ),
    )
