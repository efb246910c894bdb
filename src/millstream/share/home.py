"""SharePartitions: the share partitions of one shard, and the hop to those of the others.

A fetch asks one shard after the other, so that its budget of records is one. Batches do not travel: their fragments
are lent, as by ``partition.hop.home``. The end and the replacement of a session travel on the same ring as its
requests, and so never overtake them. A shard that does not answer in time has its answer lost: what it acquired is
released at its deadline.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from millstream.config.group_properties import LATEST, READ_COMMITTED, READ_UNCOMMITTED, ShareGroupConfig
from millstream.coordinator.share_states import ShareStates
from millstream.core.share.partition import Acknowledgement, Acquired, Limits, Request
from millstream.core.share.runs import SessionToken
from millstream.core.share.stored import Key
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import RaftGroupId, ShardId
from millstream.partition.hop.lookups import TIMEOUT_US
from millstream.partition.hop.messages import Loan, borrow_all, lend_all
from millstream.partition.partition import Partition
from millstream.partition.table import PartitionTable
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply
from millstream.share.meters import ShareMeters
from millstream.share.served import ServedPartition, Taken, Waiter

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache

FETCH, ACKNOWLEDGE, END, REPLACE, WAKE = range(70, 75)
"""Methods of the mailbox."""

SERVED_MAX: Final = 10_000
"""Share partitions of one shard."""

Place: TypeAlias = tuple[Key, RaftGroupId]
"""A share partition, and the group of its log."""


class FetchAsk(msgspec.Struct, frozen=True, array_like=True):
    """Take records of these share partitions, in their order, until the budget of records is used up."""

    request: Request
    max_bytes: int
    places: list[Place]
    holds: bool = False
    """The fetch has acquired records on another shard."""


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """`Taken`, whose data are lent."""

    error: int
    acquired: list[Acquired]
    loans: list[Loan] | None


class AcknowledgeAsk(msgspec.Struct, frozen=True, array_like=True):
    """What a member says of records of one share partition."""

    member: str
    place: Place
    given: list[Acknowledgement]


_encode = msgspec.msgpack.Encoder().encode
_decode_fetch = msgspec.msgpack.Decoder(FetchAsk).decode
_decode_answers = msgspec.msgpack.Decoder(list[_Answer]).decode
_decode_acknowledge = msgspec.msgpack.Decoder(AcknowledgeAsk).decode
_decode_error = msgspec.msgpack.Decoder(int).decode
_decode_end = msgspec.msgpack.Decoder(tuple[str, SessionToken]).decode
_decode_replace = msgspec.msgpack.Decoder(tuple[str, str, SessionToken]).decode


class SharePartitions:
    """The share partitions of this shard, and both ends of the hop.

    Lifecycle: one per shard, built before the mailbox runs and before partitions open. ``on_wake`` is set before the
    first request.
    """

    def __init__(self, shard: Shard, table: PartitionTable, states: ShareStates, metadata: "MetadataCache") -> None:
        self._shard = shard
        self._table = table
        self._metadata = metadata
        self.states = states
        self.reactor = shard.reactor
        self.meters = ShareMeters(shard.stats)
        self._served: dict[str, dict[tuple[bytes, int], ServedPartition]] = {}
        """By group, then by topic id and partition."""
        self._count = 0
        self.on_wake: Callable[[SessionToken], None] = _nothing
        """Called when a session of this shard may find something."""
        mailbox = shard.mailbox
        mailbox.serve(FETCH, self._serve_fetch)
        mailbox.serve(ACKNOWLEDGE, self._serve_acknowledge)
        mailbox.serve(END, self._serve_end)
        mailbox.serve(REPLACE, self._serve_replace)
        mailbox.serve(WAKE, self._serve_wake)
        table.on_close(self._closed)

    # Here

    def _find(self, place: Place, *, makes: bool) -> ServedPartition | ErrorCode:
        """The share partition, which is made by its first fetch (``makes``)."""
        (group_id, topic_id, index), raft_group = place
        partition = self._table.by_group.get(raft_group)
        if partition is None:
            return self._table.gone(raft_group)
        if partition.refusal is not ErrorCode.NONE:
            return partition.refusal
        if not partition.group.is_serving:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # it does not know yet what is committed
        found = self._served.get(group_id, {}).get((topic_id, index))
        if found is None:
            if not makes:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            if self._count >= SERVED_MAX:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._count += 1
            self.meters.partitions.set(self._count)
            found = ServedPartition(place[0], partition, self)
            self._served.setdefault(group_id, {})[topic_id, index] = found
        return found

    def forget(self, served: ServedPartition) -> None:
        """A share partition has closed."""
        group_id, topic_id, index = served.key
        of_group = self._served.get(group_id, {})
        if of_group.get((topic_id, index)) is served:
            self._count -= 1
            self.meters.partitions.set(self._count)
            del of_group[topic_id, index]
            if not of_group:
                del self._served[group_id]

    def _closed(self, partition: Partition) -> None:
        """The log goes, or another leads it."""
        for of_group in list(self._served.values()):
            served = of_group.get((partition.topic_id, partition.index))
            if served is not None:
                served.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                self.forget(served)

    def wake(self, waiter: Waiter) -> None:
        """Tell a session that it may find something."""
        shard, token = waiter
        if shard == self._shard.id:
            self._shard.reactor.call_soon(self.on_wake, token)
        else:
            self._shard.mailbox.tell(shard, WAKE, _encode(token))

    def _fetch_here(self, ask: FetchAsk, sender: int, done: Callable[[list[Taken]], None]) -> None:
        """Take of one share partition after the other."""
        taken: list[Taken] = []
        waiter = (sender, ask.request.token)

        def next_one(left: int) -> None:
            while len(taken) < len(ask.places):
                found = self._find(ask.places[len(taken)], makes=True)
                if isinstance(found, ErrorCode):
                    taken.append(Taken(found))
                    continue
                if left <= 0:
                    taken.append(Taken(ErrorCode.NONE))
                    continue
                request = msgspec.structs.replace(ask.request, records_max=left)
                share = ask.max_bytes // (len(ask.places) - len(taken))

                def got(one: Taken, left: int = left) -> None:
                    taken.append(one)
                    next_one(left - sum(each.last - each.first + 1 for each in one.acquired))

                holds = ask.holds or any(one.acquired or one.late for one in taken)
                found.fetch(request, share, waiter, got, may_wait=not holds)
                return
            done(taken)

        next_one(ask.request.records_max)

    def _acknowledge_here(self, ask: AcknowledgeAsk, done: Callable[[ErrorCode], None]) -> None:
        found = self._find(ask.place, makes=False)
        if isinstance(found, ErrorCode):
            done(found)
        else:
            found.acknowledge(ask.member, ask.given, done)

    def _end_here(self, group_id: str, token: SessionToken) -> None:
        for served in list(self._served.get(group_id, {}).values()):
            served.end_session(token)

    def _replace_here(self, group_id: str, member: str, token: SessionToken) -> None:
        for served in list(self._served.get(group_id, {}).values()):
            served.replace_session(member, token)

    # Properties of groups

    def limits_of(self, group_id: str) -> Limits:
        """What a group's properties say, or else the broker's settings."""
        own = self._metadata.group_configs.get(group_id, {})
        settings = self._metadata.settings
        lock_ms = own.get(ShareGroupConfig.record_lock_duration_ms.name, settings.group_share_record_lock_duration_ms)
        return Limits(
            lock_ms * 1000,
            own.get(ShareGroupConfig.delivery_count_limit.name, settings.group_share_delivery_count_limit),
            own.get(ShareGroupConfig.partition_max_record_locks.name, settings.group_share_partition_max_record_locks),
            bool(own.get(ShareGroupConfig.renew_acknowledge_enable.name, 1)),
        )

    def reset_of(self, group_id: str) -> int:
        """Where a group starts in a partition (``config.group_properties.OffsetReset``)."""
        return self._metadata.group_configs.get(group_id, {}).get(ShareGroupConfig.auto_offset_reset.name, LATEST)

    def reads_committed(self, group_id: str) -> bool:
        """Whether a group reads only what is committed."""
        own = self._metadata.group_configs.get(group_id, {})
        return own.get(ShareGroupConfig.isolation_level.name, READ_UNCOMMITTED) == READ_COMMITTED

    # Anywhere

    def fetch(self, to: ShardId, ask: FetchAsk, done: Callable[[list[Taken]], None]) -> None:
        """Take records on shard ``to``; ``done`` gets what each share partition gave, in the order of the places."""
        if to == self._shard.id:
            self._fetch_here(ask, to, done)
            return

        def answered(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                done([Taken(ErrorCode.NOT_LEADER_OR_FOLLOWER)] * len(ask.places))
                return
            taken: list[Taken] = []
            for one in _decode_answers(answer):
                data = None if one.loans is None else borrow_all(self._shard.mailbox, to, one.loans)
                taken.append(Taken(ErrorCode(one.error), one.acquired, data))
            done(taken)

        self._shard.mailbox.call(to, FETCH, _encode(ask), answered, TIMEOUT_US)

    def acknowledge(self, to: ShardId, ask: AcknowledgeAsk, done: Callable[[ErrorCode], None]) -> None:
        """Acknowledge on shard ``to``."""
        if to == self._shard.id:
            self._acknowledge_here(ask, done)
            return

        def answered(answer: bytes | MillstreamError) -> None:
            failed = isinstance(answer, MillstreamError)
            done(ErrorCode.REQUEST_TIMED_OUT if failed else ErrorCode(_decode_error(answer)))

        self._shard.mailbox.call(to, ACKNOWLEDGE, _encode(ask), answered, TIMEOUT_US)

    def end_session(self, group_id: str, token: SessionToken) -> None:
        """A session has ended: release what was acquired in it, on every shard."""
        for shard in range(self._shard.count):
            if shard != self._shard.id:
                self._shard.mailbox.tell(shard, END, _encode((group_id, token)))
        self._end_here(group_id, token)

    def replace_session(self, group_id: str, member: str, token: SessionToken) -> None:
        """A member has a new session, on every shard."""
        for shard in range(self._shard.count):
            if shard != self._shard.id:
                self._shard.mailbox.tell(shard, REPLACE, _encode((group_id, member, token)))
        self._replace_here(group_id, member, token)

    # For other shards

    def _serve_fetch(self, sender: int, payload: bytes, reply: Reply) -> None:
        def done(taken: Sequence[Taken]) -> None:
            mailbox = self._shard.mailbox
            answers = [
                _Answer(int(one.error), one.acquired, None if one.data is None else lend_all(mailbox, one.data))
                for one in taken
            ]
            reply.send(_encode(answers), [loan.token for one in answers for loan in one.loans or ()])

        self._fetch_here(_decode_fetch(payload), sender, done)

    def _serve_acknowledge(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender
        self._acknowledge_here(_decode_acknowledge(payload), lambda error: reply.send(_encode(int(error))))

    def _serve_end(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        self._end_here(*_decode_end(payload))

    def _serve_replace(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        self._replace_here(*_decode_replace(payload))

    def _serve_wake(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, reply
        self.on_wake(SessionToken(_decode_error(payload)))


def _nothing(*_: Any) -> None:
    """No one waits."""
