"""Fetch sessions (KIP-227): a client names its partitions once and later sends and gets only what changed.

The fetch handler of a shard holds one ``FetchSessions`` and treats every request alike::

    context = sessions.begin(request, version, now_ms)
    if isinstance(context, ErrorCode): answer it, with session id 0 and no partitions
    for partition in context.take(): read it       (after a wake-up: take() again, it gives what changed since)
    if context.superseded: answer INVALID_FETCH_SESSION_EPOCH with context.session_id and no partitions
    for each partition that was read, in order:
        if context.include(partition, error, high_watermark, log_start_offset, record_bytes): add it to the answer
    answer with session id context.finish(now_ms)

**What an incremental fetch costs.** Kafka walks every partition of the session on every request to find the few that
changed. Here a session keeps a queue of the partitions whose answer may differ from the last one sent, and ``take``
gives only these; a session of a thousand partitions with one change costs one partition's work. A partition enters
the queue

- when the request adds it or changes its offset, size or epoch,
- when ``SessionPartition.changed()`` is called. The reader of a partition for a session must arrange for that call on
  every later move of its high watermark or log start offset, every change of leader epoch, and when it opens or closes
  (``SessionPartition.watch`` is a free slot for what that takes, ``on_forget`` tells when it may go). Subscribe before
  the first read: then a change between read and answer is not lost, because ``changed()`` queues the partition again,
- when it was answered with records or an error, or has more than was read: the next request looks at it again,
  unserved partitions first, served ones last, which is Kafka's rotation.

``context.park(wake)`` has ``wake()`` called once, when the next partition is queued: for a fetch that waits. What a
partition's answer must hold to be sent in an incremental response is Kafka's rule: records, an error, or another high
watermark or log start offset than the last sent.

Which session gives way to a new one is Kafka's rule too: one that was unused for two minutes; else the smallest of
those that are older than two minutes and smaller than the new one, sessions of followers only for followers. If none
does, the client continues without a session. The number of partitions in all sessions is bounded as well: past that
bound full fetches get no session, and an incremental fetch that adds partitions loses its session
(FETCH_SESSION_ID_NOT_FOUND; the client starts over). The same goes for names that are too long for a topic. Session
ids carry the shard: shard ``i`` of ``n`` gives out ids in the i-th of n equal parts of 1 … 2^31-1, so a client that
reconnects to another shard gets FETCH_SESSION_ID_NOT_FOUND, never another client's session.

A crash loses all sessions, which clients handle by starting over. Pure: clock and randomness are handed in.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from millstream.core.controller.topic_names import NAME_LENGTH_MAX
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiVersion, Offset, ShardId
from millstream.wire.messages.fetch import FetchPartition, FetchRequest
from millstream.wire.schema import ZERO_UUID

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICTION_MS: Final = 120_000
"""Kafka's fixed age: a session unused for so long may be evicted, one younger than that only if it is stale."""

_ID_SPACE: Final = 1 << 31
_LAST_EPOCH: Final = _ID_SPACE - 1
_TOPIC_IDS_FROM: Final = 13

# Sessions in eviction order: (is a follower's, partitions, session id); the smallest goes first.
_EvictionKey = tuple[bool, int, int]


class SessionPartition:
    """A partition that a fetch reads: its parameters, and what was last sent about it.

    ``topic`` is "" until the caller, who knows the id only, fills it in. ``watch`` and ``near`` are the caller's, too.
    """

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "fetcher_log_start_offset",
        "index",
        "last_fetched_epoch",
        "max_bytes",
        "near",
        "queued",
        "sent_high_watermark",
        "sent_log_start_offset",
        "session",
        "topic",
        "topic_id",
        "watch",
    )

    def __init__(self, topic: str, topic_id: bytes, asked: FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = asked.partition
        self.sent_high_watermark = self.sent_log_start_offset = -1
        self.session: _Session | None = None
        self.queued = False
        self.watch: object = None
        self.near = False
        self.update(asked)

    def update(self, asked: FetchPartition) -> None:
        """Take over the parameters of a request."""
        self.max_bytes = asked.partition_max_bytes
        self.fetch_offset = Offset(asked.fetch_offset)
        self.fetcher_log_start_offset = asked.log_start_offset
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch

    def changed(self) -> None:
        """What a fetch would answer for this partition may differ from what was sent. Cheap, and idempotent."""
        session = self.session
        if session is None or self.queued:
            return
        self.queued = True
        session.queue.append(self)
        wake = session.wake
        if wake is not None:
            session.wake = None
            wake()


_Key = tuple[bytes | str, int]


class _Session:
    """A session. ``queue`` holds partitions to look at, ``taken`` those that the current request looks at."""

    __slots__ = (
        "cached_size",
        "created_ms",
        "epoch",
        "evictable_by_all",
        "follower",
        "id",
        "last_used_ms",
        "partitions",
        "queue",
        "taken",
        "uses_topic_ids",
        "wake",
    )

    def __init__(self, session_id: int, follower: bool, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.follower = follower
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.epoch = 1
        self.partitions: dict[_Key, SessionPartition] = {}
        self.queue: list[SessionPartition] = []
        self.taken: dict[SessionPartition, None] = {}
        self.wake: Callable[[], None] | None = None
        self.cached_size = -1
        self.evictable_by_all = False

    def take(self) -> list[SessionPartition]:
        queue, self.queue = self.queue, []
        fresh: list[SessionPartition] = []
        for partition in queue:
            partition.queued = False
            if partition.session is self:
                self.taken[partition] = None
                fresh.append(partition)
        return fresh

    def return_taken(self, served: list[SessionPartition]) -> None:
        """Queue again what the last request took and did not settle, in front; what it served, at the end."""
        back: list[SessionPartition] = []
        for partition in self.taken:
            if partition.session is self and not partition.queued:
                partition.queued = True
                back.append(partition)
        self.taken.clear()
        if back:
            self.queue = back + self.queue
        for partition in served:
            if partition.session is self and not partition.queued:
                partition.queued = True
                self.queue.append(partition)


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == _LAST_EPOCH else epoch + 1


class FetchContext:
    """One fetch request: what it asks about, and what goes into its answer.

    Full and session-less requests answer for every partition they name; incremental ones for what changed.
    """

    __slots__ = ("_epoch", "_fresh", "_partitions", "_served", "_session", "_sessions", "_wants_session")

    def __init__(
        self,
        sessions: "FetchSessions",
        session: _Session | None,
        partitions: dict[_Key, SessionPartition],
        wants_session: tuple[bool, bool] | None,
    ) -> None:
        self._sessions = sessions
        self._session = session
        self._epoch = session.epoch if session is not None else FINAL_EPOCH
        self._partitions = partitions
        self._fresh = session is None
        self._wants_session = wants_session
        """(follower, by topic id) of the session that a full request would like; None if it would not."""
        self._served: list[SessionPartition] = []

    @property
    def incremental(self) -> bool:
        return self._session is not None

    @property
    def session_id(self) -> int:
        return NO_SESSION if self._session is None else self._session.id

    @property
    def partition_count(self) -> int:
        """Partitions of the request or its session."""
        return len(self._partitions)

    @property
    def superseded(self) -> bool:
        """A later request of the same session has started: this one may only answer INVALID_FETCH_SESSION_EPOCH."""
        return self._session is not None and self._session.epoch != self._epoch

    def take(self) -> list[SessionPartition]:
        """Partitions to read now: at first all of a full request, later those queued since the last call."""
        if self._session is not None:
            return self._session.take()
        if not self._fresh:
            return []
        self._fresh = False
        return list(self._partitions.values())

    def look_at_all(self) -> None:
        """Have ``take`` give every partition: for a request that does not wait, because notices may be in flight."""
        session = self._session
        if session is not None:
            for partition in session.partitions.values():
                if not partition.queued:
                    partition.queued = True
                    session.queue.append(partition)

    def park(self, wake: Callable[[], None] | None) -> bool:
        """Have ``wake()`` called once when a partition of the session is queued; None takes it back.

        False: there is one already, ``take`` it. A request without a session is never woken: its caller watches the
        partitions itself.
        """
        session = self._session
        if session is None:
            return True
        if session.queue and wake is not None:
            return False
        session.wake = wake
        return True

    def include(
        self,
        partition: SessionPartition,
        error: int,
        high_watermark: int,
        log_start_offset: int,
        record_bytes: int,
        *,
        forced: bool = False,
        late: bool = False,
    ) -> bool:
        """Must ``partition`` be in the answer? Remembers it as sent if so: call it once for each, when answering.
        ``forced`` is for what a client must see in any case: a preferred replica, a diverging epoch. With ``late`` the
        next request reads the partition after the others.
        """
        must = forced or record_bytes > 0 or error != 0
        if high_watermark != partition.sent_high_watermark or log_start_offset != partition.sent_log_start_offset:
            must = True
            partition.sent_log_start_offset = log_start_offset
        # After an error the next good answer is always news.
        partition.sent_high_watermark = -1 if error else high_watermark
        session = self._session
        if session is None:
            return True
        if record_bytes > 0 or error != 0 or late:
            session.taken.pop(partition, None)
            self._served.append(partition)
        elif partition.fetch_offset >= high_watermark:
            session.taken.pop(partition, None)  # settled: only a change brings it back
        return must

    def finish(self, now_ms: int) -> int:
        """End the request; the session id for the answer (0: none)."""
        session = self._session
        if session is not None:
            session.wake = None
            session.return_taken(self._served)
            return session.id
        if self._wants_session is None:
            return NO_SESSION
        return self._sessions.create(list(self._partitions.values()), self._wants_session, now_ms)


class FetchSessions:
    """The sessions of one shard.

    Lifecycle: one per shard, from its start to its end. Invariant: ``_sessions`` is ordered by last use.
    """

    __slots__ = (
        "_by_all",
        "_by_followers",
        "_first_id",
        "_id_count",
        "_on_forget",
        "_partitions_max",
        "_random_below",
        "_sessions",
        "_slots",
        "evictions",
        "partition_count",
    )

    def __init__(
        self,
        shard: ShardId,
        shard_count: int,
        slots: int,
        random_below: Callable[[int], int],
        *,
        partitions_max: int = 200_000,
        on_forget: Callable[[SessionPartition], None] | None = None,
    ) -> None:
        """``random_below(n)`` gives 0 … n-1. ``on_forget`` is called for every partition that leaves a session."""
        assert 0 <= shard < shard_count
        width = _ID_SPACE // shard_count
        self._first_id = max(1, shard * width)
        self._id_count = (shard + 1) * width - self._first_id
        self._slots = slots
        self._partitions_max = partitions_max
        self._random_below = random_below
        self._on_forget = on_forget
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._by_all: list[_EvictionKey] = []
        self._by_followers: list[_EvictionKey] = []
        self.partition_count = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, version: ApiVersion, now_ms: int) -> FetchContext | ErrorCode:
        """Start a request; an ``ErrorCode`` is the whole answer (with session id 0)."""
        epoch = request.session_epoch
        odd = any(len(topic.topic) > NAME_LENGTH_MAX for topic in request.topics)  # such names are not kept
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            named = self._sessions.get(request.session_id)
            if named is not None:
                self._remove(named)
            wants = None if odd or epoch == FINAL_EPOCH else (is_follower(request, version), version >= _TOPIC_IDS_FROM)
            return FetchContext(self, None, _named_partitions(request), wants)
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != (version >= _TOPIC_IDS_FROM):
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if session.taken:
            session.return_taken([])  # the last request never finished: its connection was lost
        session.wake = None
        self._apply(session, request)
        if not session.partitions:
            self._remove(session)
            return FetchContext(self, None, _named_partitions(request), None)
        if odd or self.partition_count + len(session.partitions) - session.cached_size > self._partitions_max:
            self._remove(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        self._touch(session, now_ms)
        session.epoch = _next_epoch(epoch)
        return FetchContext(self, session, session.partitions, None)

    def create(self, partitions: list[SessionPartition], wants: tuple[bool, bool], now_ms: int) -> int:
        """Make a session of what a full request asked for; its id, or 0 if none gives way to it."""
        follower, uses_topic_ids = wants
        size = len(partitions)
        if self._slots <= 0:
            return NO_SESSION
        if len(self._sessions) >= self._slots and not self._evict_for(follower, size, now_ms):
            return NO_SESSION
        if self.partition_count + size > self._partitions_max:
            return NO_SESSION
        session = _Session(self._new_id(), follower, uses_topic_ids, now_ms)
        for partition in partitions:
            session.partitions[(partition.topic_id if uses_topic_ids else partition.topic, partition.index)] = partition
            partition.session = session
            partition.queued = True
        # They may have been unwatched between the read and now, so the next request looks at all of them once.
        session.queue = partitions
        self._sessions[session.id] = session
        self._touch(session, now_ms)
        return session.id

    def _apply(self, session: _Session, request: FetchRequest) -> None:
        """Add, change and forget partitions as an incremental request says; what it names is queued."""
        partitions = session.partitions
        by_id = session.uses_topic_ids
        for topic in request.topics:
            name: bytes | str = topic.topic_id if by_id else topic.topic
            for asked in topic.partitions:
                key = (name, asked.partition)
                partition = partitions.get(key)
                if partition is None:
                    partition = partitions[key] = SessionPartition(topic.topic, topic.topic_id, asked)
                    partition.session = session
                else:
                    partition.update(asked)
                if not partition.queued:
                    partition.queued = True
                    session.queue.append(partition)
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if by_id else forgotten.topic
            for index in forgotten.partitions:
                partition = partitions.pop((name, index), None)
                if partition is not None:
                    self._forget((partition,))

    def _forget(self, partitions: Iterable[SessionPartition]) -> None:
        on_forget = self._on_forget
        for partition in partitions:
            partition.session = None
            if on_forget is not None:
                on_forget(partition)

    def _new_id(self) -> int:
        while True:
            session_id = self._first_id + self._random_below(self._id_count)
            if session_id not in self._sessions:
                return session_id

    def _touch(self, session: _Session, now_ms: int) -> None:
        """The session is used: it moves to the end of the order of use, and where eviction would find it now."""
        sessions = self._sessions
        sessions.move_to_end(session.id)
        session.last_used_ms = now_ms
        size = len(session.partitions)
        old_enough = now_ms - session.created_ms > EVICTION_MS
        if size == session.cached_size and old_enough == session.evictable_by_all:
            return
        self._unlist(session)
        self.partition_count += size - max(session.cached_size, 0)
        session.cached_size = size
        session.evictable_by_all = old_enough
        key = (session.follower, size, session.id)
        if not session.follower or old_enough:
            insort(self._by_followers, key)
        if old_enough:
            insort(self._by_all, key)

    def _unlist(self, session: _Session) -> None:
        key = (session.follower, session.cached_size, session.id)
        for order in (self._by_followers, self._by_all):
            place = bisect_left(order, key)
            if place < len(order) and order[place] == key:
                del order[place]

    def _evict_for(self, follower: bool, size: int, now_ms: int) -> bool:
        """Make room for a new session, if one may give way to it."""
        stale = next(iter(self._sessions.values()))
        if now_ms - stale.last_used_ms > EVICTION_MS:
            self._remove(stale)
        else:
            order = self._by_followers if follower else self._by_all
            if not order or (follower, size, 0) < order[0]:
                return False
            self._remove(self._sessions[order[0][2]])
        self.evictions += 1
        return True

    def _remove(self, session: _Session) -> None:
        del self._sessions[session.id]
        self._unlist(session)
        self.partition_count -= session.cached_size
        self._forget(session.partitions.values())
        session.wake = None


def is_follower(request: FetchRequest, version: ApiVersion) -> bool:
    """Whether a broker asks, not a consumer."""
    replica = request.replica_state.replica_id if version >= 15 else request.replica_id
    return replica >= 0


def _named_partitions(request: FetchRequest) -> dict[_Key, SessionPartition]:
    """The partitions of a full request in its order; of a partition named twice the last counts, as in Kafka."""
    named: dict[_Key, SessionPartition] = {}
    for topic in request.topics:
        topic_id = topic.topic_id
        name: bytes | str = topic_id if topic_id != ZERO_UUID else topic.topic
        for asked in topic.partitions:
            named[(name, asked.partition)] = SessionPartition(topic.topic, topic_id, asked)
    return named
