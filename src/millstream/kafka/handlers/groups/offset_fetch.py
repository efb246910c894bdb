"""OffsetFetch: the committed offsets of groups (``core.group.fetch``).

One group up to version 7, several from version 8 on, each of which may be on another shard; the response is sent when
all have answered. Topic ids (version 10) are resolved here. Requests by name get the id of the topic that has the name
now, so that offsets of an earlier topic of that name are never returned.
"""

from collections.abc import Callable

from millstream.coordinator.asks import OFFSET_FETCH
from millstream.core.group.fetch import METADATA_CHARACTERS_MAX, metadata_characters
from millstream.core.group.offsets import NO_OFFSET
from millstream.kafka import repeats
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from millstream.wire.schema import ZERO_UUID, Message

_GROUP_ERROR_FROM = 2
_GROUPS_FROM = 8
_TOPIC_IDS_FROM = 10


def handle(node: Node, ctx: RequestContext, request: OffsetFetchRequest) -> None:
    """Answer when every group's coordinator has answered."""
    version = ctx.api_version
    if version >= _GROUPS_FROM:
        _Fetch(node, ctx, request.groups, request.require_stable, _respond_groups(ctx)).start()
        return
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    _Fetch(node, ctx, [group], request.require_stable, _respond_single(ctx)).start()


def _respond_groups(ctx: RequestContext) -> Callable[[list[OffsetFetchResponseGroup]], None]:
    return lambda groups: ctx.respond(OffsetFetchResponse(groups=groups))


def _respond_single(ctx: RequestContext) -> Callable[[list[OffsetFetchResponseGroup]], None]:
    """Up to version 7: the offsets of the only group, in the layout of those versions."""
    version = ctx.api_version

    def done(groups: list[OffsetFetchResponseGroup]) -> None:
        (group,) = groups
        topics = [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=found.partition_index,
                        committed_offset=found.committed_offset,
                        committed_leader_epoch=found.committed_leader_epoch,
                        metadata=found.metadata,
                        error_code=found.error_code or (group.error_code if version < _GROUP_ERROR_FROM else 0),
                    )
                    for found in topic.partitions
                ],
            )
            for topic in group.topics
        ]
        ctx.respond(OffsetFetchResponse(topics=topics, error_code=group.error_code))

    return done


_Name = tuple[str, str | None, int, int]


class _Fetch:
    """One request: the results of its groups as they arrive."""

    __slots__ = (
        "_by_id",
        "_ctx",
        "_done",
        "_groups",
        "_metadata_characters",
        "_missing",
        "_names",
        "_node",
        "_results",
        "_stable",
    )

    def __init__(
        self,
        node: Node,
        ctx: RequestContext,
        groups: list[OffsetFetchRequestGroup],
        require_stable: bool,
        done: Callable[[list[OffsetFetchResponseGroup]], None],
    ) -> None:
        self._node = node
        self._ctx = ctx
        self._names = [_name(slot, group) for slot, group in enumerate(groups)]
        self._groups = dict(zip(self._names, groups, strict=True))
        self._stable = require_stable
        self._done = done
        self._by_id = ctx.api_version >= _TOPIC_IDS_FROM
        self._results: dict[_Name, OffsetFetchResponseGroup] = {}
        self._missing = len(self._groups) + 1
        self._metadata_characters = 0

    def start(self) -> None:
        for name, group in self._groups.items():
            self._ask(name, group)
        self._settled()

    def _ask(self, name: _Name, group: OffsetFetchRequestGroup) -> None:
        known, unknown = self._resolve(group)
        if known is not None and not known and unknown:
            self._put(name, OffsetFetchResponseGroup(group_id=group.group_id, topics=unknown))
            return
        resolved = OffsetFetchRequestGroup(
            group_id=group.group_id, member_id=group.member_id, member_epoch=group.member_epoch, topics=known
        )

        def done(answer: Message | ErrorCode) -> None:
            if isinstance(answer, ErrorCode):
                self._put(name, self._refused(resolved, answer))
                return
            assert isinstance(answer, OffsetFetchResponseGroup)
            if answer.error_code:
                self._put(name, self._refused(resolved, ErrorCode(answer.error_code)))
                return
            topics = answer.topics
            if known is None and self._by_id:
                topics = self._with_ids(topics)
            if unknown or topics is not answer.topics:
                answer = OffsetFetchResponseGroup(group_id=answer.group_id, topics=[*topics, *unknown])
            self._put(name, answer)

        ctx = self._ctx
        self._node.coordinator.ask(
            group.group_id,
            OFFSET_FETCH,
            ctx.api_version,
            ctx.client_id,
            ctx.host,
            resolved,
            done,
            require_stable=self._stable,
        )

    def _resolve(
        self, group: OffsetFetchRequestGroup
    ) -> tuple[list[OffsetFetchRequestTopics] | None, list[OffsetFetchResponseTopics]]:
        """The topics with name and id (None: all), and the results for unknown ids."""
        if group.topics is None:
            return None, []
        metadata = self._node.metadata
        known: list[OffsetFetchRequestTopics] = []
        unknown: list[OffsetFetchResponseTopics] = []
        for asked in group.topics:
            topic = metadata.topic_by_id(asked.topic_id) if self._by_id else metadata.topic(asked.name)
            if topic is not None:
                known.append(
                    OffsetFetchRequestTopics(
                        name=topic.name, topic_id=topic.topic_id, partition_indexes=asked.partition_indexes
                    )
                )
            elif self._by_id:
                unknown.append(_no_offsets(asked, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                known.append(asked)
        return known, unknown

    def _with_ids(self, topics: list[OffsetFetchResponseTopics]) -> list[OffsetFetchResponseTopics]:
        """Topics of a group with their ids. Offsets of deleted topics have no id and are left out."""
        named: list[OffsetFetchResponseTopics] = []
        for topic in topics:
            topic_id = topic.topic_id
            if topic_id == ZERO_UUID:
                found = self._node.metadata.topic(topic.name)
                topic_id = ZERO_UUID if found is None else found.topic_id
            if topic_id != ZERO_UUID:
                named.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic_id, partitions=topic.partitions))
        return named

    def _refused(self, group: OffsetFetchRequestGroup, error: ErrorCode) -> OffsetFetchResponseGroup:
        """A group's result with an error only. Version 1 has error codes at partitions only."""
        topics: list[OffsetFetchResponseTopics] = []
        if self._ctx.api_version < _GROUP_ERROR_FROM:
            topics = [_no_offsets(topic, error) for topic in group.topics or []]
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=error)

    def _put(self, name: _Name, result: OffsetFetchResponseGroup) -> None:
        self._metadata_characters += metadata_characters(result)
        if self._metadata_characters > METADATA_CHARACTERS_MAX:
            result = self._too_much(name)
        self._results[name] = result
        self._settled()

    def _too_much(self, name: _Name) -> OffsetFetchResponseGroup:
        return self._refused(self._groups[name], ErrorCode.UNKNOWN_SERVER_ERROR)

    def _settled(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._done(repeats.tell(self._names, self._results, self._too_much))


def _name(slot: int, group: OffsetFetchRequestGroup) -> _Name:
    """A key that groups of one request share if their results are equal: a request of all offsets of the same group."""
    return (group.group_id, group.member_id, group.member_epoch, -1 if group.topics is None else slot)


def _no_offsets(topic: OffsetFetchRequestTopics, error: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, error_code=error)
            for index in topic.partition_indexes
        ],
    )
