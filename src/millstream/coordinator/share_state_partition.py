"""The share partitions of one partition of ``__share_group_state``, run on the partition's home shard.

`state_partition` has the states of the partition and the order of its writes. While it loads, requests are refused with
COORDINATOR_LOAD_IN_PROGRESS. Updates are increments, so that the log is replayed record by record, in order. All
records of one turn leave as one batch and share a group commit. A batch that cannot be appended fails exactly the
requests that wrote it. Every `PRUNE_US` the log start moves to the oldest snapshot that is still the newest of its
share partition; a start that cannot be moved is moved the next time.
"""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, Protocol

from millstream.coordinator.share_state_records import decode_change, encode_change
from millstream.coordinator.state_partition import KeptLog, State, StatePartition, answer
from millstream.core.controller.topic_names import SHARE_GROUP_STATE
from millstream.core.share.stored import Answer, Outputs, Receipt, Request, StoredStates, Write
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.wire.records import BatchHeader, iter_records

if TYPE_CHECKING:
    from millstream.shard.reactor import Reactor

PRUNE_US: Final = 300_000_000

_LOAD_SLICE_RECORDS: Final = 16


class ShareStateLog(KeptLog, Protocol):
    """The part of ``partition.append.internal.InternalLog`` that is used here."""

    @property
    def log_start_offset(self) -> int: ...

    def trim(self, start: Offset) -> None: ...


class ShareStatePartition(StatePartition):
    """The share partitions of one partition of the state topic. A token of a request takes its `Answer`, or the error
    code that refuses it.

    Lifecycle: built when the partition opens, ``close``d when it closes. Shard: the partition's home.
    """

    kept = "share partitions"

    def __init__(self, partition: ShareStateLog, reactor: "Reactor", on_loaded: Callable[[], None]) -> None:
        """``on_loaded`` is called once, when the state is no longer LOADING, possibly before this returns."""
        self._log_of = partition
        self._written_from: dict[int, Offset] = {}
        """By receipt, an offset before the record that is being written: where the log ended."""
        self.core = StoredStates()
        super().__init__(partition, SHARE_GROUP_STATE, reactor, self.core, on_loaded)
        self._loading.start()

    # Loading

    def _collect(self, header: BatchHeader, batch: memoryview) -> Generator[None, None, None]:
        if header.is_control:
            return
        for count, record in enumerate(iter_records(batch)):
            decoded = decode_change(record)
            if decoded is not None:
                self.core.replay(*decoded, Offset(record.offset))
            if count % _LOAD_SLICE_RECORDS == 0:
                yield

    def _replay(self) -> Generator[None, None, None]:
        yield from ()

    def _loaded(self) -> None:
        self.state = State.ACTIVE
        if self.core.images:
            self._lines.place.info("the state of %d share partitions loaded", len(self.core.images))
        self.core.loaded(self._reactor.now_us())
        self._arm()
        self._reactor.call_later(PRUNE_US, self._prune)
        self._on_loaded()

    # Running

    def ask(self, request: Request) -> None:
        """Process a request. Only while ACTIVE."""
        self._carry_out(self.core.ask(request, self._reactor.now_us(), self._reactor.wall_ms()))

    def forget_topic(self, topic_id: bytes) -> None:
        """A topic was deleted: delete the state of its share partitions. What a crash leaves of it does no harm: topic
        ids are used once.
        """
        if self.state is State.ACTIVE:
            self._carry_out(self.core.delete_topic(topic_id, self._reactor.now_us(), self._reactor.wall_ms()))

    def _carry_out(self, out: Outputs) -> None:
        if out.writes:
            if not self._writes:
                self._reactor.end_of_turn(self._flush)
            self._writes += out.writes
        for token, result in out.answers:
            answer(token, result)
        self._arm()

    def _time_passed(self) -> None:
        self._carry_out(self.core.time_passed(self._reactor.now_us(), self._reactor.wall_ms()))

    def _persisted(self, receipt: int, error: ErrorCode) -> None:
        now_us, wall_ms = self._reactor.now_us(), self._reactor.wall_ms()
        at = self._written_from.pop(receipt)
        self._carry_out(self.core.persisted(Receipt(receipt), error, at, now_us, wall_ms))

    def _forget(self) -> None:
        self._written_from.clear()

    def _prune(self) -> None:
        if self.state is not State.ACTIVE:
            return
        oldest = self.core.oldest_needed
        if oldest is not None and oldest > self._log_of.log_start_offset:
            self._log_of.trim(oldest)
        self._reactor.call_later(PRUNE_US, self._prune)

    # Writing

    def _flush(self) -> None:
        """Append the records of this turn."""
        writes: list[Write] = self._writes
        self._writes = []
        end = Offset(self._log_of.high_watermark)
        self._written_from.update((write.receipt, end) for write in writes)
        self._append_records((one.receipt, encode_change(one.key, one.change)) for one in writes)


Done = Callable[[Answer | ErrorCode], None]
"""Takes the answer to a request, or the code that refuses it."""
