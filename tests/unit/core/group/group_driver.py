"""Drives a ``GroupCoordinator`` in tests: a clock, a log that persists at once or when told, answers by token."""

from itertools import count

from group_bench import Stepper
from millstream.core.group.outputs import (
    Commit,
    Delete,
    DeleteOffsets,
    Expire,
    FetchOffsets,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    Persisted,
    Sync,
    TopicDeleted,
    TransactionEnded,
)
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000


class Driver(Stepper):
    """``hold_log`` keeps writes unpersisted until ``persist``; ``log`` holds what is durable."""

    def __init__(self, topics=None, **settings) -> None:
        super().__init__(GroupSettings(**settings), topics=topics)
        self.answers: dict[object, object] = {}
        self.hold_log = False
        self.lines: list[str] = []
        self._tokens = count(1)
        self._suffixes = count(1)

    def take(self, out) -> None:
        for token, response in out.answers:
            assert token not in self.answers, "answered twice"
            self.answers[token] = response
        self.lines += out.log_lines
        self.held += out.writes
        if not self.hold_log:
            self.persist()

    def persist(self, error: ErrorCode = ErrorCode.NONE, writes: int = 1 << 30) -> None:
        while self.held and writes:
            write = self.held.pop(0)
            writes -= 1
            if error is ErrorCode.NONE:
                self.log += write.records
            self.step(Persisted(write.receipt, error))

    def restart(self) -> "Driver":
        """A new coordinator that read the durable log."""
        fresh = type(self)(self.options["topics"])
        fresh.settings, fresh.ms = self.settings, self.ms
        fresh.coordinator = self.successor()
        fresh.log = list(self.log)
        fresh._suffixes = count(1000)
        fresh.take(fresh.coordinator.loaded(fresh.now_us, fresh.ms))
        return fresh

    # Requests; each returns its token

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        client_id: str = "c",
        reason: str | None = None,
    ) -> int:
        token = next(self._tokens)
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=n, metadata=m)
                for n, m in (protocols if protocols is not None else {"range": b"r"}).items()
            ],
            reason=reason,
        )
        self.step(Join(token, request, version, client_id, "/10.0.0.1", f"s{next(self._suffixes)}"))
        return token

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
        version: int = 5,
    ) -> int:
        token = next(self._tokens)
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in (assignments or {}).items()],
        )
        self.step(Sync(token, request, version))
        return token

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None, group: str = "g") -> ErrorCode:
        token = next(self._tokens)
        self.step(
            Heartbeat(
                token,
                HeartbeatRequest(
                    group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
                ),
            )
        )
        return ErrorCode(self.answers[token].error_code)

    def leave(self, *who: str | tuple[str, str | None], group: str = "g", version: int = 5) -> list[ErrorCode]:
        """Leave with an answer at once; a code for each member, or one for all."""
        answer = self.answers[self.leave_async(*who, group=group, version=version)]
        return [ErrorCode(r.error_code) for r in answer.members] or [ErrorCode(answer.error_code)]

    def leave_async(self, *who: str | tuple[str, str | None], group: str = "g", version: int = 5) -> int:
        token = next(self._tokens)
        pairs = [w if isinstance(w, tuple) else (w, None) for w in who]
        request = LeaveGroupRequest(
            group_id=group,
            member_id=pairs[0][0],
            members=[MemberIdentity(member_id=m, group_instance_id=i) for m, i in pairs],
        )
        self.step(Leave(token, request, version))
        return token

    def commit_async(
        self,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        group: str = "g",
        instance: str | None = None,
        metadata: str | None = "",
        version: int = 9,
        retention_ms: int = -1,
        topic_id: bytes = bytes(16),
        producer: tuple[int, int] | None = None,
    ) -> int:
        token = next(self._tokens)
        topics: dict[str, list] = {}
        for (topic, index), offset in offsets.items():
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offset,
                    committed_metadata=metadata,
                    committed_leader_epoch=4,
                )
            )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[OffsetCommitRequestTopic(name=t, topic_id=topic_id, partitions=p) for t, p in topics.items()],
        )
        self.step(Commit(token, request, version, producer))
        return token

    def end_transaction(self, producer_id: int, *, commits: bool) -> None:
        """The producer's marker is durable."""
        self.step(TransactionEnded(producer_id, commits))

    def commit(self, offsets: dict[tuple[str, int], int], *args, **options) -> ErrorCode:
        """Commit with an answer at once; one code for all partitions."""
        answer = self.answers[self.commit_async(offsets, *args, **options)]
        codes = {ErrorCode(p.error_code) for t in answer.topics for p in t.partitions}
        assert len(codes) == 1
        return codes.pop()

    def fetch_async(self, group: str = "g", topics: dict[str, list[int]] | None = None, *, stable: bool = False) -> int:
        token = next(self._tokens)
        asked = (
            None
            if topics is None
            else [OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in topics.items()]
        )
        self.step(FetchOffsets(token, OffsetFetchRequestGroup(group_id=group, topics=asked), stable))
        return token

    def fetch(self, group: str = "g", topics: dict[str, list[int]] | None = None, **options) -> dict:
        answer = self.answers[self.fetch_async(group, topics, **options)]
        return {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}

    def delete_async(self, group: str = "g") -> int:
        token = next(self._tokens)
        self.step(Delete(token, group))
        return token

    def delete(self, group: str = "g") -> ErrorCode:
        return self.error(self.delete_async(group))

    def delete_offsets_async(self, *places: tuple[str, int], group: str = "g") -> int:
        token = next(self._tokens)
        topics: dict[str, list] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=index))
        request = OffsetDeleteRequest(
            group_id=group, topics=[OffsetDeleteRequestTopic(name=t, partitions=p) for t, p in topics.items()]
        )
        self.step(DeleteOffsets(token, request))
        return token

    def delete_offsets(self, *places: tuple[str, int], group: str = "g") -> ErrorCode | dict:
        """Delete with an answer at once; the group's code, or one for each partition."""
        answer = self.answers[self.delete_offsets_async(*places, group=group)]
        if answer.error_code:
            return ErrorCode(answer.error_code)
        return {(t.name, p.partition_index): ErrorCode(p.error_code) for t in answer.topics for p in t.partitions}

    def expire(self, *groups: str) -> None:
        self.step(Expire(groups or tuple(self.coordinator.groups)))

    def delete_topic(self, topic: str, topic_id: bytes = bytes(16)) -> None:
        self.step(TopicDeleted(topic, topic_id))

    # What tests look at

    def answer(self, token: int):
        return self.answers[token]

    def error(self, token: int) -> ErrorCode:
        return ErrorCode(self.answers[token].error_code)

    def waits(self, token: int) -> bool:
        return token not in self.answers

    def group(self, name: str = "g"):
        return self.coordinator.groups.get(name)

    def state(self, name: str = "g") -> str:
        group = self.group(name)
        return "Dead" if group is None else group.state.value

    # Shortcuts

    def promised_id(self, **options) -> str:
        token = self.join(**options)
        assert self.error(token) is ErrorCode.MEMBER_ID_REQUIRED
        return self.answer(token).member_id

    def stable(self, members: int, **options) -> tuple[list[str], int]:
        """A stable group of dynamic members (the leader first) and its generation; each is assigned its own id."""
        ids = [self.promised_id(**options) for _ in range(members)]
        tokens = [self.join(m, **options) for m in ids]
        while self.waits(tokens[0]):
            self.advance(DELAY_MS)
        generation = self.answer(tokens[0]).generation_id
        assert self.answer(tokens[0]).leader == ids[0]
        group = options.get("group", "g")
        self.sync_all(ids, generation, group=group)
        return ids, generation

    def sync_all(self, ids: list[str], generation: int, **options) -> None:
        """The leader (first) assigns, everybody syncs."""
        tokens = [self.sync(ids[0], generation, {m: m.encode() for m in ids}, **options)]
        tokens += [self.sync(m, generation, **options) for m in ids[1:]]
        for member_id, token in zip(ids, tokens, strict=True):
            assert self.error(token) is ErrorCode.NONE
            assert self.answer(token).assignment == member_id.encode()
