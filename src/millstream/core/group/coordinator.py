"""The groups of one partition of ``__consumer_offsets``: the entry point of this package.

::

    request ──► step ──► answers (now, or in a later step: joins and syncs are parked)
                  │
                  └────► writes ──► log ──► step(Persisted) ──► the answers that waited for it

The caller replays the log (``replay`` for each record, then ``loaded``), steps every request, appends every write in
order, steps ``Persisted`` for each write in that order, and steps ``Tick`` at ``deadline_us``. A shard that stops
coordinating calls ``unload``, which returns the tokens that still wait.

A response that promises something (an assignment, a commit) leaves only after its records are durable. A failed write
fails the requests that depend on it and leaves the state as before. Invalid input is answered with Kafka's error code;
nothing that a client sends raises.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.leaving import remove_members, time_is_over
from millstream.core.group.assigned.requests import heartbeat, loaded, replay
from millstream.core.group.commit import (
    PendingCommit,
    check_unknown_group,
    commit_error,
    commit_offsets,
    stored_offset,
)
from millstream.core.group.consumer import classic, requests
from millstream.core.group.consumer.describe import describe_consumer_group
from millstream.core.group.consumer.leaving import remove as remove_consumers
from millstream.core.group.consumer.requests import CONSUMER
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.counts import GroupCounts
from millstream.core.group.deadlines import CAME, JOIN, OFF, SESSION, SYNC, Deadline, Deadlines
from millstream.core.group.delete import DeletionPart, delete_group, delete_offsets
from millstream.core.group.fetch import fetch_offsets
from millstream.core.group.group import Group
from millstream.core.group.heartbeat import heartbeat as classic_heartbeat
from millstream.core.group.heartbeat import heartbeat_error
from millstream.core.group.image import group_record, restore
from millstream.core.group.join import check_request as check_join
from millstream.core.group.join import join_group
from millstream.core.group.leave import leave_group, unknown_group
from millstream.core.group.member import Token
from millstream.core.group.outputs import (
    AlterShareOffsets,
    Commit,
    ConsumerHeartbeat,
    DeadlinePassed,
    Delete,
    DeleteOffsets,
    DeleteShareOffsets,
    DescribeConsumer,
    DescribeShare,
    DescribeStreams,
    Due,
    Expire,
    ExpressionsResolved,
    FetchOffsets,
    ForgetStates,
    GroupRequest,
    GroupSettings,
    Heartbeat,
    Input,
    Join,
    Key,
    Leave,
    Outputs,
    Persisted,
    ShareHeartbeat,
    ShareStatesOf,
    StateAnswered,
    StreamsHeartbeat,
    Sync,
    TopicDeleted,
    TransactionEnded,
    Value,
)
from millstream.core.group.rebalance import (
    join_deadline_came,
    join_error,
    prepare,
    renew_session,
    session_ended,
    sync_deadline_came,
)
from millstream.core.group.retention import PendingRemoval, expire_group, tombstones
from millstream.core.group.share import offsets as share_offsets
from millstream.core.group.share import requests as share_requests
from millstream.core.group.share.deleting import delete_share_group
from millstream.core.group.share.heartbeat import SHARE_ANSWER
from millstream.core.group.share.requests import SHARE, describe_share_group
from millstream.core.group.step import Asks, Forget, Pending, PendingAlone, Step, Waiting
from millstream.core.group.streams.describe import describe_streams_group
from millstream.core.group.streams.requests import STREAMS
from millstream.core.group.streams.target import STREAMS_FIRST_ASSIGNMENT, assign_at_last
from millstream.core.group.sync import check_request as check_sync
from millstream.core.group.sync import sync_error, sync_group
from millstream.core.group.topics import NoTopics, Topics
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, ProducerId
from millstream.wire.messages.group_storage import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from millstream.wire.messages.leave_group import LeaveGroupResponse
from millstream.wire.messages.offset_delete import OffsetDeleteResponse
from millstream.wire.messages.offset_fetch import OffsetFetchResponseGroup
from millstream.wire.schema import ZERO_UUID

_UNKNOWN: Final = Offset(0)
"""Where a record is, if that does not matter."""


class GroupCoordinator:
    """All groups of one partition of ``__consumer_offsets``.

    Lifecycle: built, ``replay`` for each record of the log, ``loaded``, then ``step`` until ``unload``. Invariant: the
    offsets in ``groups`` equal those in the durable part of the log.
    """

    def __init__(
        self, settings: GroupSettings, counts: GroupCounts | None = None, topics: Topics | None = None
    ) -> None:
        self.settings = settings
        self.topics: Topics = NoTopics() if topics is None else topics
        self.counts = GroupCounts() if counts is None else counts
        self.groups: dict[str, Group] = {}
        self._deadlines = Deadlines[Group]()
        self._writes: dict[int, Pending] = {}
        self._receipts = [0]
        self._waiting: dict[int, list[Waiting]] = {}
        """Waiting requests by the receipt of the write that they wait for."""
        self._forgotten: list[Group] = []
        self._busy: dict[str, deque[Input]] = {}
        """Groups with a change in flight to the log or an exclusive ask, each with the inputs that arrived since."""
        self._asks = Asks()

    @property
    def deadline_us(self) -> int | None:
        """Earliest time at which a ``Tick`` is due, in µs; None if no deadline is set."""
        return self._deadlines.next_us

    def step(self, given: Input, now_us: int, wall_ms: int) -> Outputs:
        """Process one input. ``now_us`` is monotonic and greater than 0; ``wall_ms`` is the wall clock."""
        step = self._turn(now_us, wall_ms)
        if self._busy and (group_id := _waits_for(given)) is not None and group_id in self._busy:
            self._busy[group_id].append(given)
        else:
            self._take(step, given)
        return step.out

    def _take(self, step: Step, given: Input) -> None:
        match given:
            case ConsumerHeartbeat():
                heartbeat(step, self.groups.get(given.request.group_id), given, CONSUMER)
            case ShareHeartbeat():
                heartbeat(step, self.groups.get(given.request.group_id), given, SHARE)
            case StreamsHeartbeat():
                heartbeat(step, self.groups.get(given.request.group_id), given, STREAMS)
            case Heartbeat():
                self._heartbeat(step, given)
            case Commit():
                self._commit(step, given)
            case Persisted():
                self._persisted(step, given)
            case FetchOffsets():
                self._fetch(step, given)
            case DeadlinePassed():
                self._tick(step)
            case _:
                self._take_rarer(step, given)

    def _take_rarer(self, step: Step, given: Input) -> None:
        match given:
            case Join():
                self._join(step, given)
            case Sync():
                self._sync(step, given)
            case Leave():
                self._leave(step, given)
            case Delete():
                group = self.groups.get(given.group_id)
                if group is not None and group.share is not None:
                    delete_share_group(step, group, given, self._forgotten)
                else:
                    delete_group(step, group, given, self._forgotten)
            case DeleteOffsets():
                self._delete_offsets(step, given)
            case TopicDeleted():
                self._topic_deleted(step, given.topic, given.topic_id)
            case DescribeConsumer():
                described = describe_consumer_group(step, given.group_id, self.groups.get(given.group_id))
                step.out.answer(given.token, described)
            case TransactionEnded():
                self._transaction_ended(step, given)
            case ExpressionsResolved():
                requests.resolved(step, self.groups.get(given.group_id), given)
            case Due():
                if given.deadline.at_us == CAME:
                    given.deadline.at_us = OFF
                    self._due(step, given.deadline)
            case Expire():
                self._expire(step, given.group_ids)
            case _:
                self._take_of_newer(step, given)

    def _take_of_newer(self, step: Step, given: Input) -> None:
        match given:
            case DescribeStreams():
                described = describe_streams_group(step, given.group_id, self.groups.get(given.group_id))
                step.out.answer(given.token, described)
            case DescribeShare():
                described = describe_share_group(step, given.group_id, self.groups.get(given.group_id))
                step.out.answer(given.token, described)
            case ShareStatesOf():
                share_requests.states_of(step, self.groups.get(given.group_id), given)
            case AlterShareOffsets():
                share_offsets.alter(step, self.groups.get(given.request.group_id), given)
            case DeleteShareOffsets():
                share_offsets.delete(step, self.groups.get(given.request.group_id), given)
            case StateAnswered():
                self._state_answered(step, given)
            case ForgetStates():
                self._forget_states(step, given.group_id, given.topic_id)
            case _:
                raise AssertionError(f"{type(given).__name__} is no input")

    def _turn(self, now_us: int, wall_ms: int) -> Step:
        return Step(
            self.settings,
            self.counts,
            self._deadlines,
            self._writes,
            self._waiting,
            self._busy,
            self._asks,
            self.topics,
            self._receipts,
            now_us,
            wall_ms,
        )

    # Requests

    def _join(self, step: Step, join: Join) -> None:
        request = join.request
        error = check_join(step, join)
        if error is not ErrorCode.NONE:
            step.out.answer(join.token, join_error(request.member_id, error))
            return
        group = self.groups.get(request.group_id)
        if group is not None and group.assigned is not None:
            requests.join(step, group, join, lambda step: self._join(step, join))
        elif group is not None:
            join_group(step, group, join)
        elif request.member_id:
            step.out.answer(join.token, join_error(request.member_id, ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            group = Group(request.group_id, step.wall_ms)
            record = group_record(group, {})
            join_group(step, group, join)
            if group.members or group.rebalance.pending_joins:
                self._enter(group)
                step.write((record,), Forget(group))

    def _sync(self, step: Step, sync: Sync) -> None:
        error = check_sync(sync)
        group = self._member_group(sync.request.group_id)
        if error is ErrorCode.NONE and group is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if group is None or error is not ErrorCode.NONE:
            step.out.answer(sync.token, sync_error(error))
        elif group.consumer is not None:
            classic.sync(step, group, group.consumer, sync)
        else:
            sync_group(step, group, sync)

    def _heartbeat(self, step: Step, beat: Heartbeat) -> None:
        group_id = beat.request.group_id
        group = self._member_group(group_id)
        if group is not None and group_id:
            if group.consumer is None:
                classic_heartbeat(step, group, beat)
            else:
                classic.heartbeat(step, group, group.consumer, beat)
        else:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
            step.out.answer(beat.token, heartbeat_error(error))

    def _leave(self, step: Step, leave: Leave) -> None:
        group_id = leave.request.group_id
        group = self._member_group(group_id)
        if not group_id:
            step.out.answer(leave.token, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        elif group is None:
            step.out.answer(leave.token, unknown_group(leave))
        elif group.consumer is not None:
            classic.leave(step, GroupChange(group, group.consumer), leave)
        else:
            leave_group(step, group, leave)

    def _commit(self, step: Step, commit: Commit) -> None:
        group_id = commit.request.group_id
        group = self.groups.get(group_id)
        if group is None:
            error = check_unknown_group(commit)
            if error is not ErrorCode.NONE:
                step.out.answer(commit.token, commit_error(commit.request, error))
                return
            group = Group(group_id, step.wall_ms)
        commit_offsets(step, group, commit)
        if group.standing.counts is None and step.out.writes:
            self._enter(group)

    def _fetch(self, step: Step, fetch: FetchOffsets) -> None:
        group = self.groups.get(fetch.group.group_id)
        stable = fetch.require_stable
        if not stable or group is None or not group.writes.in_flight:
            step.out.answer(fetch.token, fetch_offsets(group, fetch.group, self.topics, require_stable=stable))
            return

        def answer(error: ErrorCode) -> OffsetFetchResponseGroup:
            _ = error  # a failed write needs no error here: its offsets are not in the response
            current = self.groups.get(fetch.group.group_id)
            return fetch_offsets(current, fetch.group, self.topics, require_stable=True)

        step.when_written(group, fetch.token, answer)

    def _delete_offsets(self, step: Step, delete: DeleteOffsets) -> None:
        group_id = delete.request.group_id
        if group_id:
            delete_offsets(step, self.groups.get(group_id), delete)
        else:
            step.out.answer(delete.token, OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID))

    def _member_group(self, group_id: str) -> Group | None:
        """A group that may have members of the classic protocol: a classic or a consumer group."""
        group = self.groups.get(group_id)
        return None if group is None or not isinstance(group.assigned, ConsumerGroup | None) else group

    def _enter(self, group: Group) -> Group:
        self.groups[group.group_id] = group
        group.standing.enter(self.counts)
        return group

    def _vanish(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is not None:
            group.standing.vanish()

    # The log

    def _persisted(self, step: Step, fate: Persisted) -> None:
        pending = self._writes.pop(fate.receipt)
        group = pending.group
        group.writes.in_flight -= 1
        pending.settle(step, fate.error)
        if group.assigned is not None and group.standing.counts is None and fate.error is ErrorCode.NONE:
            self._enter(group)
        while self._forgotten:
            gone = self._forgotten.pop()
            if not gone.writes.in_flight:
                self._vanish(gone.group_id)
        if fate.error is not ErrorCode.NONE and _is_nothing(group):
            self._vanish(group.group_id)
        for waiting in self._waiting.pop(fate.receipt, ()):
            step.out.answer(waiting.token, waiting.answer(fate.error))
        if isinstance(pending, PendingAlone) and not self._asks.holds(group):
            self._release(step, group.group_id)

    def _release(self, step: Step, group_id: str) -> None:
        """A change of a group has settled: process the waiting inputs, up to the next change."""
        waiting = self._busy.pop(group_id)
        while waiting:
            self._take(step, waiting.popleft())
            if group_id in self._busy:
                self._busy[group_id].extend(waiting)
                return

    def _state_answered(self, step: Step, given: StateAnswered) -> None:
        """Share state was made or deleted, or could not be."""
        ask = self._asks.open.pop(given.ask.number)
        if not ask.is_exclusive:
            ask.answered(step, given.response)
            return
        group_id = ask.group.group_id
        waiting = self._busy.pop(group_id)
        ask.answered(step, given.response)
        if group_id in self._busy:
            self._busy[group_id].extend(waiting)
        else:
            self._busy[group_id] = waiting
            self._release(step, group_id)

    def _forget_states(self, step: Step, group_id: str, topic_id: bytes) -> None:
        """A topic was deleted: its share group forgets it, once no change is in flight."""
        group = self.groups.get(group_id)
        if group is None or group.share is None or not group.share.states.knows(topic_id):
            return
        if group_id in self._busy:
            self._busy[group_id].append(ForgetStates(group_id, topic_id))
        else:
            share_requests.topic_deleted(step, group, topic_id)

    def _transaction_ended(self, step: Step, ended: TransactionEnded) -> None:
        """The offsets of a transaction become those of their groups, or are dropped. The log says so already."""
        for group in list(self.groups.values()):
            if not group.offsets.pending:
                continue
            offsets = group.offsets.pending.take(ended.producer_id)
            if ended.commits:
                for (topic, partition), offset in offsets.items():
                    known = group.offsets.get(topic, partition)
                    if known is None or known.order < offset.order:
                        group.offsets.put(topic, partition, offset)
                step.counts.committed_offsets += len(offsets)
            elif offsets and _is_nothing(group):
                self._vanish(group.group_id)

    def _topic_deleted(self, step: Step, topic: str, topic_id: bytes) -> None:
        """Delete the offsets of a deleted topic, including those in open transactions and in flight to the log.

        Offsets of its successor stay, because a shard that already knows the successor may have sent some.
        """
        gone = (topic_id, ZERO_UUID)
        doomed: dict[str, set[int]] = {}
        for group in self.groups.values():
            partitions = group.offsets.topics.get(topic)
            if partitions is not None:
                doomed[group.group_id] = {index for index, offset in partitions.items() if offset.topic_id in gone}
            for index, offset in group.offsets.pending.of_topic(topic) if group.offsets.pending else ():
                topic_partitions = doomed.setdefault(group.group_id, set())
                (topic_partitions.add if offset.topic_id in gone else topic_partitions.discard)(index)
        for pending in self._writes.values():
            if isinstance(pending, PendingCommit):
                for name, partition, offset in pending.offsets:
                    if name == topic:
                        topic_partitions = doomed.setdefault(pending.group.group_id, set())
                        (topic_partitions.add if offset.topic_id in gone else topic_partitions.discard)(partition)
        for group_id in [group.group_id for group in self.groups.values() if group.share is not None]:
            self._forget_states(step, group_id, topic_id)
        for group_id, partitions in doomed.items():
            keys = [(topic, partition) for partition in sorted(partitions)]
            for removed, records in tombstones(group_id, keys):
                step.write(records, PendingRemoval(self.groups[group_id], removed, None))

    # Time

    def _tick(self, step: Step) -> None:
        while (deadline := self._deadlines.pop_due(step.now_us)) is not None:
            if self.groups.get(deadline.group.group_id) is not deadline.group:
                continue
            if deadline.group.group_id in self._busy:
                deadline.at_us = CAME
                self._busy[deadline.group.group_id].append(Due(deadline))
            else:
                self._due(step, deadline)

    @staticmethod
    def _due(step: Step, deadline: Deadline[Group]) -> None:
        holder = deadline.group
        if deadline.kind == JOIN:
            join_deadline_came(step, holder)
        elif deadline.kind == SYNC:
            sync_deadline_came(step, holder)
        elif deadline.kind == SESSION:
            session_ended(step, deadline)
        elif holder.share is not None and deadline.kind == SHARE_ANSWER:
            share_requests.answer_is_late(step, holder.share, deadline)
        elif holder.streams is not None and deadline.kind == STREAMS_FIRST_ASSIGNMENT:
            assign_at_last(step, holder, holder.streams, deadline)
        elif holder.assigned is not None:
            remove = remove_consumers if holder.consumer is not None else remove_members
            time_is_over(step, GroupChange(holder, holder.assigned), deadline, remove)

    def _expire(self, step: Step, group_ids: Sequence[str]) -> None:
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is not None:
                expire_group(step, group, self._forgotten)

    # Loading and unloading

    def replay(self, key: Key, value: Value | None, offset: Offset = _UNKNOWN) -> None:
        """Process one record of the log, which is at ``offset``, in order, before ``loaded``."""
        group = self.groups.get(key.group)
        if isinstance(key, OffsetCommitKey):
            if value is None:
                if group is not None:
                    group.offsets.remove(key.topic, key.partition)
                    if _is_nothing(group):
                        self._vanish(key.group)
                return
            assert isinstance(value, OffsetCommitValue)
            if group is None:
                group = self._enter(Group(key.group, value.commit_timestamp))
            group.offsets.put(key.topic, key.partition, stored_offset(value, offset))
        elif not isinstance(key, GroupMetadataKey):
            if group is None and value is not None:
                group = self._enter(Group(key.group, -1))
            if group is not None:
                replay(group, key, value)
                if _is_nothing(group):
                    self._vanish(key.group)
        elif value is None:
            # Offsets have their own tombstones: offsets that a compacted log still holds are valid.
            self._vanish(key.group)
            if group is not None and group.offsets:
                offsets, group = group.offsets, Group(key.group, group.standing.since_ms)
                group.offsets = offsets
                self._enter(group)
        else:
            assert isinstance(value, GroupMetadataValue)
            if group is None:
                group = Group(key.group, value.current_state_timestamp)
            else:
                group.standing.vanish()
            restore(group, value)
            self._enter(group)

    def replay_pending(self, producer_id: ProducerId, key: Key, value: Value | None, offset: Offset) -> None:
        """Process one record of a transaction that is open at the end of the log, after every ``replay``."""
        if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
            group = self.groups.get(key.group) or self._enter(Group(key.group, value.commit_timestamp))
            group.offsets.pending.put(producer_id, key.topic, key.partition, stored_offset(value, offset))

    def loaded(self, now_us: int, wall_ms: int) -> Outputs:
        """The log has been read. From now on members have their session timeout to send a request."""
        step = self._turn(now_us, wall_ms)
        for group in self.groups.values():
            if group.assigned is not None:
                loaded(step, group, group.assigned)
            for member in group.members.values():
                renew_session(step, member)
            if len(group.members) > self.settings.max_size:
                prepare(step, group)  # the limit was lowered: let members commit, and keep those who rejoin first
        return step.out

    def unload(self) -> list[Token]:
        """Stop, and return the tokens of requests that will get no response from here. No further step is allowed."""
        tokens: list[Token] = [waiting.token for several in self._waiting.values() for waiting in several]
        for group in self.groups.values():
            for member in group.members.values():
                tokens += [token for token in (member.join_token, member.sync_token) if token is not None]
            if group.share is not None:
                tokens += [token for token, _ in group.share.requests.waits.values()]
            group.standing.vanish()
        writes = self._writes.values()
        tokens += [pending.token for pending in writes if isinstance(pending, PendingCommit)]
        tokens += [
            token for pending in writes if isinstance(pending, PendingAlone) and (token := pending.token) is not None
        ]
        for several in self._busy.values():
            tokens += [token for given in several if (token := _token_of(given)) is not None]
        self._busy.clear()
        tokens += self._asks.tokens
        self._asks.open.clear()
        tokens += [pending.token for pending in writes if isinstance(pending, DeletionPart) and pending.is_last]
        self.groups.clear()
        self._writes.clear()
        self._waiting.clear()
        return tokens


def _waits_for(given: Input) -> str | None:
    """The group whose change in flight this input must wait for; None if it need not wait."""
    match given:
        case GroupRequest():
            return given.request.group_id
        case Delete() | ExpressionsResolved():
            return given.group_id
        case StateAnswered():
            return None if given.ask.is_exclusive else given.ask.group_id
        case _:
            return None


def _token_of(given: Input) -> Token | None:
    """The token of a waiting input; None if no request waits for it."""
    return given.token if isinstance(given, GroupRequest | Delete) else None


def _is_nothing(group: Group) -> bool:
    """Whether the group has no members, never had any, and has no offsets left."""
    return (
        group.protocol_type is None
        and group.generation == 0
        and not group.members
        and not group.rebalance.pending_joins
        and not group.offsets
        and not group.offsets.pending
        and not group.writes.in_flight
    )
