"""Fetch: read batches from many partitions, wait until there is enough of them, and send them without copying.

::

    session names partitions ─► read each on its home shard ─► enough, an error, or too late? ─► answer
                 ▲                                                        │ no
                 └───────────── a watched partition changed ◄── parked ◄──┘

A fetch is a ``FetchCall``. The fetch session (KIP-227) decides which partitions it reads. A partition without data is
*watched*: its home shard reports once when data arrive. A session keeps its watches between requests, so a poll of a
thousand quiet partitions costs only the partitions that changed.

**Object store.** A partition whose batches only the object store has is waited for half a second, as in Kafka
(`remote.fetch.max.wait.ms`). Then the others are read with the room that it took, and answered. Its read is not started
again: the next fetch joins the one that is on its way, or gets what came in between.

A partition that does not exist does not end the wait for the others. A partition that fails while it is read does, as
in Kafka. If none of the partitions exists, the answer is sent at once.

Memory: answers share fragments of the log cache, or hold fragments that a cold read filled. All answers of a shard
together are limited to a share of its arena (KIP-74). Without room an answer holds only its first batch, so that every
reader makes progress. A parked call holds no fragment. It is answered early when other requests need the memory of its
request, or when its client has disconnected (``net.parking``). ``net.stalls`` closes the connection of a client that
does not take its answer.
"""

from typing import TYPE_CHECKING, Final

from millstream.core.fetch_session import FetchContext, SessionPartition, is_follower
from millstream.iobuf import IoBuf, MemoryClass
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.data.fetch_at_once import ROOM_MAX, Lent, answer_at_once
from millstream.kafka.handlers.data.fetch_refusals import (
    BY_ID,
    KNOWS_THE_LEADER,
    MISSING,
    NO_ABORTED,
    NO_DIVERGENCE,
    NO_LEADER,
    entry_of,
    follower_error,
    leader_of,
    missing_error,
    refuse_all,
)
from millstream.kafka.handlers.data.nearest import NO_REPLICA, nearest_replica, selects_by_rack
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ShardId
from millstream.partition.events.records import as_records, has_events
from millstream.partition.partition import Partition
from millstream.partition.read.batches import FetchResult, read_here, read_older, refused
from millstream.partition.read.list_offsets import READ_COMMITTED, READ_UNCOMMITTED
from millstream.partition.read.request import STORE_PATIENCE_US, ReadRequest
from millstream.partition.read.watch import Watch
from millstream.partition.table import Remote
from millstream.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from millstream.wire.messages.leader import NodeEndpoint
from millstream.wire.packed_fetch import ReadPartition, ReadTopic, pack_fetch

if TYPE_CHECKING:
    from millstream.shard.reactor import Timer

_NONE: Final = int(ErrorCode.NONE)
MAX_WAIT_MS: Final = 60_000
"""Maximum wait of a parked fetch. Its connection is not read until its end, so a disconnect would not be seen."""

GATHER_MAX: Final = 8 << 20
"""Maximum number of bytes that a fetch waits for, even with larger ``min_bytes``."""

_SLACK: Final = 1 << 20
"""Bytes that an answer of whole batches may leave unused."""

PATIENCE_US: Final = (STORE_PATIENCE_US, STORE_PATIENCE_US // 5, 0)
"""How long each pass over the partitions waits for the object store: the first one, the one over those for which a late
partition took the room, and the last one, which does not ask it.
"""

_STORAGE_ERROR_FROM: Final = 6
"""First version whose clients know KAFKA_STORAGE_ERROR; the others get NOT_LEADER_OR_FOLLOWER, as from Kafka."""

_LEADERS_FROM: Final = 16
"""First version whose response names the current leader (KIP-951)."""


class Passes:
    """Passes of one fetch over its partitions, while the object store does not answer for some of them. Lifecycle: the
    fetch's.
    """

    __slots__ = ("count", "late")

    def __init__(self) -> None:
        self.count = 0
        """Since the first one, or the last wait: the index into `PATIENCE_US`."""
        self.late: dict[SessionPartition, None] = {}
        """Partitions for which the object store has not answered."""

    @property
    def patience_us(self) -> int:
        """How long this pass waits for the object store."""
        return PATIENCE_US[self.count]

    @property
    def is_last(self) -> bool:
        """Whether no other pass follows without a wait."""
        return not self.late or self.count == len(PATIENCE_US) - 1

    def start_again(self) -> list[SessionPartition]:
        """Be patient again. The partitions that are late, to be read behind the others."""
        late = list(self.late)
        self.count = 0
        self.late = {}
        return late


class FetchCall:
    """One fetch in progress. ``results`` holds the data that were read, in the order of the answer. ``partial`` holds
    the partitions whose data were too few to answer with; those data were released.
    """

    __slots__ = (
        "behind",
        "context",
        "ctx",
        "deadline_us",
        "error",
        "granted",
        "min_bytes",
        "missing",
        "node",
        "partial",
        "passes",
        "reading",
        "sent_to",
        "request",
        "reserved",
        "results",
        "room",
        "size",
        "timer",
        "woken",
    )

    def __init__(self, node: Node, ctx: RequestContext, request: FetchRequest, context: FetchContext) -> None:
        self.node = node
        self.ctx = ctx
        self.request = request
        self.context = context
        self.deadline_us = ctx.received_us + min(request.max_wait_ms, MAX_WAIT_MS) * 1000
        self.results: dict[SessionPartition, FetchResult] = {}
        self.partial: list[SessionPartition] = []
        self.behind: list[SessionPartition] = []  # read after the shard whose turn it is
        self.passes = Passes()
        self.woken: dict[SessionPartition, None] = {}
        self.size = 0
        self.granted = False  # a first batch was given, of any size
        self.missing = 0  # partitions that are not there
        self.min_bytes = request.min_bytes
        self.room = ctx.fetch_room(min(request.max_bytes, node.settings.fetch_max_bytes))
        if self.min_bytes > 1:
            self.min_bytes = min(self.min_bytes, GATHER_MAX, self.room - min(_SLACK, self.room // 2))
        self.room = max(0, min(self.room, max(ROOM_MAX, self.min_bytes + _SLACK)))
        self.reserved = 0
        self.sent_to: dict[SessionPartition, int] = {}  # partitions to be read from another replica (KIP-392)
        self.reading = 0
        self.error = False
        self.timer: Timer | None = None  # while the call is parked

    # Reading

    def read(self, partitions: list[SessionPartition], *, in_turn: bool = True) -> None:
        """Fetch 4/8. Read ``partitions`` on their home shards; ``settle`` follows when all have answered.

        The shard of the first partition reads first; the others get the room that remains.
        """
        node = self.node
        room = self._room()
        self.reading += 1
        here: list[tuple[SessionPartition, Partition]] = []
        remote: dict[ShardId, list[tuple[SessionPartition, Remote]]] = {}
        remote_first = False
        rack = self.request.rack_id
        by_rack = selects_by_rack(node, rack)
        for asked in partitions:
            entry = entry_of(node, asked)
            asked.near = bool(rack)
            if by_rack and (replica := nearest_replica(node, rack, asked)) != NO_REPLICA:
                self.sent_to[asked] = replica
                self.results[asked] = refused(_NONE)
            elif isinstance(entry, Partition):
                here.append((asked, entry))
            elif isinstance(entry, Remote):
                remote_first = remote_first or not (remote or here)
                remote.setdefault(entry.shard, []).append((asked, entry))
            else:
                self._refuse(asked, missing_error(node, asked) if entry is None else ErrorCode.KAFKA_STORAGE_ERROR)
        if in_turn and remote_first and (here or len(remote) > 1):
            shard = next(iter(remote))
            ahead = {shard: remote.pop(shard)}
            self.behind = [asked for asked, _ in here]
            self.behind += [asked for items in remote.values() for asked, _ in items]
            here, remote = [], ahead
        gather, committed = self.gathers, self.committed
        patience_us = self.passes.patience_us
        for asked, entry in here:
            request = ReadRequest(
                asked.fetch_offset,
                min(asked.max_bytes, room),
                not self.granted,
                committed,
                asked.current_leader_epoch,
                asked.last_fetched_epoch,
                gather,
                asked.near,
                patience_us,
            )
            result = read_here(entry, request, self.watch(asked))
            if result is None:
                room -= self._read_older(entry, asked, request)
            else:
                data = result.data
                room -= 0 if data is None else len(data)
                self._put(asked, result)
        for shard, items in remote.items():
            self.reading += 1
            share = max(room, 0) // len(remote)
            node.home.read(
                shard,
                items,
                share,
                self,
                minimum_one=not self.granted,
                gather=self.gathers,
                committed=committed,
                patience_us=patience_us,
            )
        self._read_done()

    def _refuse(self, asked: SessionPartition, code: ErrorCode) -> None:
        """There is nothing to read from."""
        if code in MISSING and asked not in self.results:
            self.missing += 1
        else:
            self.error = True
        self.results[asked] = refused(int(code))

    @property
    def committed(self) -> bool:
        """Whether the reader wants only what is committed."""
        return self.request.isolation_level == READ_COMMITTED

    def refuse_follower(self, partitions: list[SessionPartition]) -> None:
        """Answer a fetch that says that it comes from a replica."""
        for asked in partitions:
            self._refuse(asked, follower_error(self.node, asked))
        self.answer()

    @property
    def gathers(self) -> bool:
        """A first batch may be too small to answer with. Partitions with data are then watched for more."""
        return self.min_bytes > 1

    def _read_older(self, partition: Partition, asked: SessionPartition, request: ReadRequest) -> int:
        """Let the worker read a partition of this shard from its files. Returns the bytes that the read takes of the
        request's room.
        """
        self.reading += 1

        def done(result: FetchResult) -> None:
            self.take(asked, result)

        taken = read_older(partition, request, done)
        self.granted = self.granted or taken > 0
        return taken

    def take(self, asked: SessionPartition, result: FetchResult) -> None:
        """One partition was read from its files."""
        self._put(asked, result)
        self._read_done()

    def take_many(self, results: list[tuple[SessionPartition, FetchResult]]) -> None:
        """Another shard's partitions were read."""
        for asked, result in results:
            self._put(asked, result)
        self._read_done()

    def _put(self, asked: SessionPartition, result: FetchResult) -> None:
        before, data = self.results.get(asked), result.data
        held = None if before is None else before.data
        if result.error_code or result.diverging is not None:
            self.error = True
        elif data is None and held is not None:
            return  # no room to read it again
        if data is not None:
            self.size += len(data)
            self.granted = True
        if result.late:
            self.passes.late[asked] = None
        if held is not None:
            self.size -= len(held)
            held.release()
        self.results[asked] = result

    def _read_done(self) -> None:
        self.reading -= 1
        if self.reading:
            return
        if self.behind:
            behind, self.behind = self.behind, []
            self.read(behind, in_turn=False)
        elif not self.passes.is_last and (left_out := self._left_out()):
            self.passes.count += 1
            self.granted = self.size > 0
            self.read(left_out)
        else:
            self.settle()

    def _left_out(self) -> list[SessionPartition]:
        """Partitions with batches for which late ones took the room."""
        found: list[SessionPartition] = []
        for asked, result in self.results.items():
            end = result.last_stable_offset if self.committed else result.high_watermark
            has_none = not result.data and not result.error_code and result.diverging is None
            if has_none and asked.fetch_offset < end and not result.late:
                found.append(asked)
        return found

    def _room(self) -> int:
        """Bytes that this fetch may still read; without a share of the fetch budget only the first batch goes."""
        if not self.reserved:
            if self.node.shard.arena.reserve(MemoryClass.FETCH, self.room):
                self.reserved = self.room
            else:
                self.node.meters.cut.inc()
        return self.reserved - self.size

    # Waiting

    def settle(self) -> None:
        """Fetch 7/8. All reads are done: answer, or wait for more data."""
        now_us = self.node.shard.reactor.now_us()
        enough = self.size >= self.min_bytes or self.error or bool(self.sent_to) or self.context.superseded
        if not self.results and not self.context.incremental:
            enough = True  # it named no partition: a consumer that closes its session
        elif self.missing and self.missing == self.context.partition_count:
            enough = True  # none of them is there
        if enough or now_us >= self.deadline_us or self.ctx.connection.closed:
            self.answer()
            return
        fresh = self._fresh()
        if self.passes.late:
            self.ctx.rest()
            fresh.extend(asked for asked in self.passes.start_again() if asked not in fresh)
        if fresh:
            self.read(fresh)
            return
        self._park()

    def _fresh(self) -> list[SessionPartition]:
        """Partitions that changed after they were read."""
        fresh = self.context.take()
        if self.woken:
            fresh.extend(asked for asked in self.woken if asked not in fresh)
            self.woken.clear()
        return fresh

    def _park(self) -> None:
        """Release the memory and wait for a change or the deadline."""
        self._release_views()
        self.ctx.rest()
        self.node.meters.waiters.add(1)
        self.timer = self.node.shard.reactor.call_at(self.deadline_us, self._too_late)
        self.context.park(self._changed)
        self.ctx.connection.intake.parking.wait(self.ctx, self._end)

    def _release_views(self) -> None:
        for asked, result in self.results.items():
            if result.data is not None:
                result.data.release()
                self.results[asked] = FetchResult(
                    result.error_code, result.high_watermark, result.last_stable_offset, result.log_start_offset
                )
                if asked not in self.partial:
                    self.partial.append(asked)
        self.size = 0
        self.granted = False
        self._unreserve()

    def _changed(self) -> None:
        """A watched partition has data. It is read at the end of this turn, after all commits of the turn."""
        if self.timer is not None:
            self.timer.cancel()
            self._unpark()
            self.node.shard.reactor.call_soon(self._read_again)

    def _too_late(self) -> None:
        if self.timer is not None:
            self._unpark()
            self._read_again()

    def _end(self) -> None:
        """End the wait now: the client has disconnected, or other requests need the memory."""
        if self.timer is not None:
            self.timer.cancel()
            self.deadline_us = 0
            self._too_late()

    def _unpark(self) -> None:
        self.timer = None
        self.node.meters.waiters.add(-1)
        self.ctx.connection.intake.parking.go_on(self.ctx)

    def _read_again(self) -> None:
        self.context.park(None)
        if self.ctx.connection.closed:
            self.answer()
            return
        again = self.partial
        self.partial = []
        again.extend(asked for asked in self._fresh() if asked not in again)
        self.read(again)

    def wake(self, asked: SessionPartition) -> None:
        """A partition that this call watches itself (there is no session) has changed."""
        self.woken[asked] = None
        self._changed()

    def watch(self, asked: SessionPartition) -> Watch:
        watch = asked.watch
        if not isinstance(watch, Watch):
            watch = asked.watch = Watch(asked)
        if asked.session is None:
            watch.call = self
        return watch

    # Answering

    def answer(self) -> None:
        """Fetch 8/8. Build the answer from shared views and hand it to the connection."""
        context = self.context
        ctx = self.ctx
        node = self.node
        results = self.results
        if context.superseded or ctx.connection.closed:
            code = ErrorCode.INVALID_FETCH_SESSION_EPOCH if context.superseded else ErrorCode.NONE
            self._answer_without_data(code, context.session_id)
            return
        if ctx.charge_fetch(self.size):
            self._answer_over_quota()
            return
        included: list[tuple[SessionPartition, FetchResult]] = []
        plain = not self.sent_to and ctx.merge is None
        include = context.include
        for asked, result in results.items():
            error, data = result.error_code, result.data
            size = 0 if data is None else len(data)
            forced = result.diverging is not None
            if asked in self.sent_to:
                forced = True
                asked.changed()  # should the consumer ask here again
            ends = result.high_watermark, result.log_start_offset
            if include(asked, error, *ends, size, forced=forced, late=result.late):
                included.append((asked, result))
                if forced or error or result.aborted or (data is not None and has_events(data)):
                    plain = False
        self._stop_watching()
        if self.reserved > self.size:
            node.shard.arena.unreserve(MemoryClass.FETCH, self.reserved - self.size)
            self.reserved = self.size
        node.meters.fetched.inc(self.size)
        sent = None
        if self.size:
            data = [result.data for result in results.values() if result.data is not None]
            sent = Lent(node.shard.arena, data, self.reserved)
            self.reserved = 0
        self.results = {}
        session_id = context.finish(node.shard.reactor.now_us() // 1000)
        if not context.incremental:
            node.meters.count_sessions(len(node.fetch_sessions), node.fetch_sessions.evictions)
        if plain:
            topics = self._read_topics(included)
            packed = pack_fetch(ctx.api_version, ctx.head(), session_id, topics, committed=self.committed)
            ctx.respond_packed(packed, sent)
        else:
            ctx.respond_vectored(self._message(included, session_id), sent)

    def _read_topics(self, included: list[tuple[SessionPartition, FetchResult]]) -> list[ReadTopic]:
        """What was read, by topic, without an error."""
        by_id = self.ctx.api_version >= BY_ID
        topics: list[ReadTopic] = []
        name, topic_id = "", b""
        partitions: list[ReadPartition] = []
        for asked, result in included:
            if asked.topic_id != topic_id or not (by_id or asked.topic == name):
                name, topic_id, partitions = asked.topic, asked.topic_id, []
                topics.append(ReadTopic(name, topic_id, partitions))
            stable, start = result.last_stable_offset, result.log_start_offset
            partitions.append((asked.index, result.high_watermark, stable, start, result.data))
        return topics

    def _message(self, included: list[tuple[SessionPartition, FetchResult]], session_id: int) -> FetchResponse:
        """What was read, with its errors, and what else a client has to know."""
        version, committed = self.ctx.api_version, self.committed
        responses: list[FetchableTopicResponse] = []
        endpoints: list[NodeEndpoint] = []
        topic: FetchableTopicResponse | None = None
        for asked, result in included:
            error, data, diverging = result.error_code, result.data, result.diverging
            if topic is None or topic.topic_id != asked.topic_id or (version < BY_ID and topic.topic != asked.topic):
                topic = FetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id, partitions=[])
                responses.append(topic)
            if error == ErrorCode.KAFKA_STORAGE_ERROR and version < _STORAGE_ERROR_FROM:
                error = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            answered: list[AbortedTransaction] | None = (
                NO_ABORTED if (error in MISSING if error else committed) else None
            )
            if result.aborted:
                answered = [AbortedTransaction(*one) for one in result.aborted]
            leader = NO_LEADER
            if error in KNOWS_THE_LEADER and version >= _LEADERS_FROM:
                leader = leader_of(self.node, self.ctx, asked, endpoints)
            topic.partitions.append(
                PartitionData(
                    partition_index=asked.index,
                    error_code=error,
                    high_watermark=result.high_watermark,
                    last_stable_offset=result.last_stable_offset,
                    log_start_offset=result.log_start_offset,
                    diverging_epoch=NO_DIVERGENCE if diverging is None else EpochEndOffset(*diverging),
                    current_leader=leader,
                    aborted_transactions=answered,
                    preferred_read_replica=self.sent_to.get(asked, NO_REPLICA),
                    records=b"" if data is None else self._records(asked, data),
                )
            )
        return FetchResponse(session_id=session_id, responses=responses, node_endpoints=endpoints)

    def _answer_over_quota(self) -> None:
        """An existing session reads these partitions again; none is made."""
        context = self.context
        session_id = context.finish(self.node.shard.reactor.now_us() // 1000) if context.incremental else 0
        self._answer_without_data(ErrorCode.NONE, session_id)

    def _answer_without_data(self, code: ErrorCode, session_id: int) -> None:
        """The client has gone, or gets nothing now."""
        self._stop_watching()
        self._release()
        self.ctx.respond(FetchResponse(error_code=int(code), session_id=session_id))

    def _records(self, asked: SessionPartition, data: IoBuf) -> IoBuf | list[bytes]:
        """The record data that were read."""
        if not has_events(data):
            return data
        metadata = self.node.metadata
        topic = metadata.topic_by_id(asked.topic_id) if not asked.topic else metadata.topic(asked.topic)
        if topic is not None and not topic.config.has_events and not topic.data_of:
            return data  # a producer set the bit in a batch of records
        return as_records(data, "metadata" if topic is None else topic.config.kafka_view)

    def _stop_watching(self) -> None:
        """End the watches, except those of a session that still exists."""
        for asked in self.results:
            if asked.session is None and isinstance(asked.watch, Watch):
                asked.watch.disarm(self.node.home.watches.unwatch)

    def _release(self) -> None:
        """Release the data that were read: no response is needed."""
        for result in self.results.values():
            if result.data is not None:
                result.data.release()
        self.results = {}
        self._unreserve()

    def _unreserve(self) -> None:
        if self.reserved:
            self.node.shard.arena.unreserve(MemoryClass.FETCH, self.reserved)
            self.reserved = 0


def handle(node: Node, ctx: RequestContext, request: FetchRequest) -> None:
    """Fetch 3/8. Ask the session for the partitions to read, and read them."""
    if not READ_UNCOMMITTED <= request.isolation_level <= READ_COMMITTED:
        ctx.respond(refuse_all(request, ErrorCode.UNKNOWN_SERVER_ERROR))
        return
    if answer_at_once(node, ctx, request):
        return
    context = node.fetch_sessions.begin(request, ctx.api_version, node.shard.reactor.now_us() // 1000)
    if isinstance(context, ErrorCode):
        ctx.respond(FetchResponse(error_code=int(context), session_id=0))
        return
    call = FetchCall(node, ctx, request, context)
    if request.max_wait_ms <= 0:
        context.look_at_all()
    if is_follower(request, ctx.api_version):
        call.refuse_follower(context.take())
    else:
        call.read(context.take())
    ctx.hold()  # one fetch at a time per connection, as in Kafka: what is read ahead of its reader is memory
