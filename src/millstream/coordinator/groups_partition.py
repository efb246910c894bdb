"""The groups of one partition of ``__consumer_offsets``, run on the partition's home shard.

`state_partition` has the states of the partition and the order of its writes. While it loads, requests are refused with
COORDINATOR_LOAD_IN_PROGRESS, and clients retry. If a record does not decode, one log line names its offset, the groups
of this partition are refused (NOT_COORDINATOR), and all others continue.

All records of one turn leave as one batch at the end of the turn, so they share a group commit. Requests that wait for
them are answered when the batch is durable. A batch that cannot be appended fails exactly the requests that wrote it;
so does a request that exceeds the maximum batch. Either failure is reported to the core in the order of the writes. A
crash loses nothing that was acknowledged, because the state is a function of the log.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from millstream.coordinator.hashing import OFFSETS_TOPIC
from millstream.coordinator.records import decode_record, encode_record
from millstream.coordinator.share_asks import AskStates, no_share_coordinator
from millstream.coordinator.state_partition import BATCH_BYTES, KeptLog, State, StatePartition, answer
from millstream.coordinator.verified_commits import VerifiedCommits, VerifyingLog
from millstream.core.group.coordinator import GroupCoordinator
from millstream.core.group.counts import GroupCounts
from millstream.core.group.member import Token
from millstream.core.group.outputs import (
    DeadlinePassed,
    Expire,
    ExpressionsResolved,
    GroupSettings,
    Input,
    Outputs,
    Persisted,
    Resolve,
    StateAnswered,
    StateAsk,
    StateResponse,
    TopicDeleted,
    TransactionEnded,
    Write,
)
from millstream.core.group.regex import matcher, weight
from millstream.core.group.topics import Topics
from millstream.errors import Corruption, Rejected
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.wire.records import COMMIT, BatchHeader, Record, build_batch, iter_records, marker_of
from millstream.wire.schema import Message

if TYPE_CHECKING:
    from millstream.shard.reactor import Reactor

_NewRecord: TypeAlias = tuple[bytes, bytes | None, tuple[()], int]

Done = Callable[[Message | ErrorCode], None]
"""Callback for the response of a request, or for the code that refuses it as a whole."""

WRITE_BYTES_MAX: Final = 4 << 20
"""Maximum size of the records of one request: they must fit into the log cache of a shard with the minimum memory.
Kafka's limit is ``max.message.bytes`` of the topic, 1 MiB.
"""
_FLUSH_RECORDS: Final = 1_000
"""Records encoded in one callback; a single larger write is encoded whole. A few ms."""
_LOAD_SLICE_RECORDS: Final = 16
_EXPIRY_SLICE_GROUPS: Final = 16
_ANSWERS_AT_ONCE: Final = 32
"""Responses sent in one callback. A rebalance answers all members of a group, of which there may be thousands."""
_RESOLVE_SHARE: Final = 0.3
_RESOLVE_SLICE_STEPS: Final = 4_096
"""Matching an expression costs steps per character; a slice matches as many names as that allows."""


class OffsetsPartition(KeptLog, VerifyingLog, Protocol):
    """The part of ``partition.append.internal.InternalLog`` that is used here."""

    def on_transaction_ended(self, callback: Callable[[int, bool], None]) -> None: ...


def _nobody() -> None:
    """Default callback without effect."""


class GroupsPartition(StatePartition):
    """The groups of one partition.

    Lifecycle: built when the partition opens, ``close``d when it closes. Shard: the partition's home.
    """

    kept = "groups"

    def __init__(
        self,
        partition: OffsetsPartition,
        reactor: "Reactor",
        settings: GroupSettings,
        counts: GroupCounts,
        on_loaded: Callable[[], None],
        topics: Topics | None = None,
        on_change: Callable[[], None] = _nobody,
    ) -> None:
        """``on_loaded`` is called once, when the state is no longer LOADING, possibly before this returns.
        ``on_change`` is called whenever groups may have changed, by a request or by a member's silence.
        """
        self.core = GroupCoordinator(settings, counts, topics)
        super().__init__(partition, OFFSETS_TOPIC, reactor, self.core, on_loaded)
        self._on_change = on_change
        self._unsent: deque[tuple[Token, Message]] = deque()
        self._deleted_topics: list[tuple[str, bytes]] = []  # deleted while loading
        self._begun_us = reactor.now_us()
        self._records = 0
        self._latest: dict[bytes, Record] = {}
        """While loading: the last record of each key, without deleted ones, in log order. The groups depend on these
        alone, as in a compacted log.
        """
        self._pending: dict[int, dict[bytes, Record]] = {}
        """While loading: the same of each transaction that is open, by producer id."""
        self._ended: list[TransactionEnded] = []  # while loading
        self.verified = VerifiedCommits(partition)
        """Commits of transactions whose coordinator is asked before they are stepped."""
        self.ask_states: AskStates = no_share_coordinator
        """Asks the share coordinator, wherever it is. Set before the first step."""
        partition.on_transaction_ended(self._transaction_ended)
        self._loading.start()

    # Loading

    def _collect(self, header: BatchHeader, batch: memoryview) -> Generator[None, None, None]:
        """Collect the records of one batch, or end the transaction of its producer."""
        if header.is_control:
            pending = self._pending.pop(header.producer_id, {})
            if marker_of(batch)[0] == COMMIT:
                for key, record in pending.items():
                    known = self._latest.get(key)
                    if known is None or known.offset < record.offset:
                        self._latest[key] = record
            return
        latest = self._latest
        if header.is_transactional:
            latest = self._pending.setdefault(header.producer_id, {})
        for record in iter_records(batch):
            if record.key is None:
                raise Corruption(f"the record at offset {record.offset} has no key")
            latest.pop(record.key, None)
            if record.value is not None:
                latest[record.key] = record
            elif latest is self._latest:
                for pending in self._pending.values():
                    pending.pop(record.key, None)  # deleted before its transaction has ended
            self._records += 1
            if self._records % _LOAD_SLICE_RECORDS == 0:
                yield

    def _replay(self) -> Generator[None, None, None]:
        latest, self._latest = self._latest, {}
        # A transaction may have committed an offset that was stored before what the log has after it.
        for count, record in enumerate(sorted(latest.values(), key=lambda record: record.offset)):
            decoded = decode_record(record)
            if decoded is not None:
                self.core.replay(*decoded, Offset(record.offset))
            if count % _LOAD_SLICE_RECORDS == 0:
                yield
        for producer_id, records in self._pending.items():
            for record in records.values():
                decoded = decode_record(record)
                if decoded is not None:
                    self.core.replay_pending(producer_id, *decoded, Offset(record.offset))
            yield

    def _loaded(self) -> None:
        self.state = State.ACTIVE
        if self._records:
            took_ms = (self._reactor.now_us() - self._begun_us) // 1000
            self._lines.place.info(
                "%d groups loaded from %d records in %d ms", len(self.core.groups), self._records, took_ms
            )
        self._carry_out(self.core.loaded(self._reactor.now_us(), self._reactor.wall_ms()))
        self._pending = {}
        ended, self._ended = self._ended, []
        for given in ended:
            self.step(given)
        deleted, self._deleted_topics = self._deleted_topics, []
        for topic, topic_id in deleted:
            self.step(TopicDeleted(topic, topic_id))
        self._on_loaded()

    # Running

    def step(self, given: Input) -> None:
        """Process an input. Only while ACTIVE or, for the outcome of a write, STOPPING."""
        reactor = self._reactor
        self._carry_out(self.core.step(given, reactor.now_us(), reactor.wall_ms()))

    def _carry_out(self, out: Outputs) -> None:
        if out.writes:
            if not self._writes:
                self._reactor.end_of_turn(self._flush)
            self._writes += out.writes
        for wanted in out.resolve:
            self._resolve(wanted)
        for ask in out.asks:
            self._ask_states(ask)
        self._say(out.log_lines)
        if len(out.answers) <= _ANSWERS_AT_ONCE:
            for token, response in out.answers:
                answer(token, response)
        else:
            if not self._unsent:
                self._reactor.call_soon(self._tell_some)
            self._unsent.extend(out.answers)
        self._arm()
        self._on_change()

    def _tell_some(self) -> None:
        """Send some of many responses; the others follow in later callbacks."""
        unsent = self._unsent
        for _ in range(min(_ANSWERS_AT_ONCE, len(unsent))):
            answer(*unsent.popleft())
        if unsent:
            self._reactor.call_soon(self._tell_some)

    def _ask_states(self, ask: StateAsk) -> None:
        """Ask for share state; the core gets the answer in a later callback."""

        def answered(response: StateResponse) -> None:
            self._reactor.call_soon(lambda: self._states_answered(ask, response))

        self.ask_states(ask.request, answered)

    def _states_answered(self, ask: StateAsk, response: StateResponse) -> None:
        if self.state in (State.ACTIVE, State.STOPPING):
            self.step(StateAnswered(ask, response))

    def _resolve(self, wanted: Resolve) -> None:
        """Find the topics that a group's regular expressions match, in slices."""
        topics = self.core.topics
        revision = topics.revision
        found: dict[str, set[str]] = {expression: set() for expression in wanted.expressions}

        def look() -> Generator[None, None, None]:
            patterns = [(matcher(expression), matched) for expression, matched in found.items()]
            together = max(_RESOLVE_SLICE_STEPS // sum(map(weight, found)), 1)
            for count, name in enumerate(topics.names()):
                for matches, matched in patterns:
                    if matches(name) and topics.may_describe(wanted.principal, wanted.client_host, name):
                        matched.add(name)
                if count % together == 0:
                    yield

        def finished() -> None:
            if self.state is State.ACTIVE:
                matched = {expression: frozenset(names) for expression, names in found.items()}
                self.step(ExpressionsResolved(wanted.group_id, matched, revision))

        self._reactor.background("other", look(), _RESOLVE_SHARE, finished)

    def _time_passed(self) -> None:
        self.step(DeadlinePassed())

    def _persisted(self, receipt: int, error: ErrorCode) -> None:
        self.step(Persisted(receipt, error))

    def _forget(self) -> None:
        self.verified.close()
        self._latest, self._pending = {}, {}
        while self._unsent:
            answer(*self._unsent.popleft())

    def _transaction_ended(self, producer_id: int, commits: bool) -> None:
        """A marker of this partition is committed."""
        if self.state is State.LOADING:
            self._ended.append(TransactionEnded(producer_id, commits))  # the reading may have passed it, or not
        elif self.state in (State.ACTIVE, State.STOPPING):
            self.step(TransactionEnded(producer_id, commits))

    def topic_deleted(self, topic: str, topic_id: bytes) -> None:
        """Drop the committed offsets of a deleted topic."""
        if self.state is State.ACTIVE:
            self.step(TopicDeleted(topic, topic_id))
        elif self.state is State.LOADING:
            self._deleted_topics.append((topic, topic_id))

    def expire(self) -> Generator[None, None, None]:
        """Search for expired offsets and groups, in slices."""
        group_ids = list(self.core.groups)
        for start in range(0, len(group_ids), _EXPIRY_SLICE_GROUPS):
            if self.state is not State.ACTIVE:
                return
            self.step(Expire(tuple(group_ids[start : start + _EXPIRY_SLICE_GROUPS])))
            yield

    # Writing

    def _flush(self) -> None:
        """Append the records of this turn, those of one request together. A large amount is spread over later turns."""
        first, records = 0, 0
        while first < len(self._writes) and records < _FLUSH_RECORDS:
            records += len(self._writes[first].records)
            first += 1
        writes, self._writes = self._writes[:first], self._writes[first:]
        if self._writes:
            self._reactor.call_soon(self._flush)
        timestamp = self._reactor.wall_ms()
        batch: list[_NewRecord] = []
        receipts: list[int] = []
        size = 0
        for write in writes:
            records, more = _encode(write, timestamp)
            if receipts and (more > WRITE_BYTES_MAX or write.producer is not None):
                self._append(build_batch(batch), receipts)
                batch, receipts, size = [], [], 0
            if more > WRITE_BYTES_MAX:
                group_id = write.records[0][0].group
                why = f"a request of group {group_id} has more than {WRITE_BYTES_MAX} bytes to write"
                self._refuse(write.receipt, Rejected(why, ErrorCode.MESSAGE_TOO_LARGE))
                continue
            if write.producer is not None:
                producer_id, epoch = write.producer
                content = build_batch(records, producer_id=producer_id, producer_epoch=epoch, transactional=True)
                self._append(content, [write.receipt])
                continue
            batch += records
            size += more
            receipts.append(write.receipt)
            if size >= BATCH_BYTES:
                self._append(build_batch(batch), receipts)
                batch, receipts, size = [], [], 0
        if receipts:
            self._append(build_batch(batch), receipts)
        self._settle()


def _encode(write: Write, timestamp: int) -> tuple[list[_NewRecord], int]:
    """The records of a write in stored form, and their size. Encoding stops at the maximum size."""
    records: list[_NewRecord] = []
    size = 0
    for key, value in write.records:
        encoded_key, encoded_value = encode_record(key, value)
        records.append((encoded_key, encoded_value, (), timestamp))
        size += len(encoded_key) + len(encoded_value or b"")
        if size > WRITE_BYTES_MAX:
            break
    return records, size
