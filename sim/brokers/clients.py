"""Clients of the simulated brokers: producers, readers and a group, with the errors and retries of real ones.

A client keeps one connection at a time. What it sends on one arrives in order; a connection that breaks leaves the
outcome of pending requests unknown, and what was sent on it may still be carried out. Each client holds its answers
against the `History`: nothing lost, repeated, out of order, invented, or older than what it knew.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from crc32c import crc32c

from millstream.format.segment import parse_batch
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.partition.read.list_offsets import EARLIEST, LATEST
from millstream.wire.records import RECORD_BYTES_MIN
from sim.brokers.judge import at_least, check_sum
from sim.brokers.served import OFFSETS_GROUP, ServedBroker
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.brokers.judge import History
    from sim.brokers.served import Fetched
    from sim.brokers.world import Broker, Cluster
    from sim.engine.requests import Produced

_COVERED: Final = struct.Struct(">hiqqqhii")
_UNCOVERED: Final = struct.Struct(">qiibI")
_FETCH_BYTES: Final = 4_000
_IDS: Final = 1_000
"""More than there are producers."""


def idempotent_batch(
    value: int, count: int, size: int, producer_id: int, sequence: int, *, epoch: int = 0, attributes: int = 0
) -> bytes:
    """A batch of ``count`` records whose timestamp is ``value``, with at least ``size`` bytes where records are."""
    body = bytes(max(size, count * RECORD_BYTES_MIN))
    epoch = epoch if producer_id >= 0 else -1
    covered = _COVERED.pack(attributes, count - 1, value, value, producer_id, epoch, sequence, count) + body
    return _UNCOVERED.pack(0, 9 + len(covered), -1, 2, crc32c(covered)) + covered


class Client:
    """One client: its connection, and whom it takes for the leader."""

    def __init__(self, cluster: Cluster, name: str, group: int, timeout_us: int) -> None:
        self.cluster = cluster
        self.name = name
        self.history: History = cluster.histories[group]
        self.timeout_us = timeout_us
        """A request without an answer for so long has an unknown outcome."""
        self.chance = cluster.chance(f"client {name}")
        self.session = 0
        """Number of the connection; answers of an earlier one count for nothing."""
        self._group = group
        self._broker: ServedBroker | None = None
        self._life = 0
        self._sent_us = 0
        self._answered_us = 0
        self._lost = False
        """The connection is dead, and the client has not noticed."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._broker is not None

    def connect(self) -> None:
        """Connect to whom the metadata of some broker calls the leader; to anybody now and then, as it may be old."""
        brokers = [cast(ServedBroker, one) for one in self.cluster.brokers.values()]
        leading = [one for one in brokers if one.is_up and one.leads(self._group)]
        self.session += 1
        self._broker = self.chance.choice(leading if leading and self.chance.random() < 0.9 else brokers)
        self._life = self._broker.life
        self._lost = False
        self._sent_us = self._answered_us = self.cluster.now

    def disconnect(self) -> None:
        """Close the connection: no answer arrives on it from now on."""
        self.session += 1
        self._broker = None

    def ask(self, serve: Callable[[ServedBroker, Callable[[Any], None]], None], done: Callable[[Any], None]) -> None:
        """Send a request on the connection; ``done`` gets the answer, or None if the connection breaks first."""
        broker, session, cluster = self._broker, self.session, self.cluster
        assert broker is not None
        life, settled = self._life, False
        cluster.operations += 1

        def tell(answer: Any) -> None:
            nonlocal settled
            if session == self.session and not settled:
                settled = True
                done(answer)

        def reply(answer: Any) -> None:
            if session == self.session and broker.life == life and broker.is_up and self._passes():
                self._answered_us = max(self._answered_us + 1, cluster.now + self._delay_us())
                cluster.after(self._answered_us - cluster.now, lambda: tell(answer))

        def arrive(arrived: Broker) -> None:
            if arrived.life == life:
                serve(broker, reply)

        if not broker.is_up or broker.life != life:
            cluster.after(self._delay_us(), lambda: tell(None))
            return
        self._sent_us = max(self._sent_us + 1, cluster.now + self._delay_us())
        if self._passes():
            cluster.send_at(self._sent_us, broker.replica, arrive)
        cluster.after(self.timeout_us, lambda: tell(None))

    def _passes(self) -> bool:
        """Whether a message gets through; if not, none does after it."""
        self._lost = self._lost or self.chance.random() < self.cluster.loss
        return not self._lost

    def _delay_us(self) -> int:
        return self.cluster.delay_us // 2 + self.chance.randrange(self.cluster.delay_us)


class _Batch(NamedTuple):
    """A batch that is not acknowledged."""

    value: int
    records: int
    size: int
    sequence: int


class Producer(Client):
    """An idempotent producer with acks=all that sends a batch until it is acknowledged, several at a time.

    As the Java client, it sends again one batch after the other. Its first batch goes alone, too: a leader that does
    not know a producer takes any sequence of it, as with Kafka.

    Invariants: ``unacked`` is in the order of the sequences; the first ``_alone`` of it are sent one at a time.
    """

    def __init__(self, cluster: Cluster, producer_id: int, group: int, timeout_us: int, in_flight: int) -> None:
        super().__init__(cluster, f"producer {producer_id}", group, timeout_us)
        self.producer_id = producer_id
        self.in_flight = in_flight
        self.unacked: deque[_Batch] = deque()
        self.acknowledged_end = 0
        """As an offset; no batch that is not acknowledged is before it."""
        self._next_sequence = 0
        self._alone = 1
        self._waits = False

    def send(self, value: int, count: int, size: int) -> bool:
        """Send a new batch; false if too many are in flight."""
        if len(self.unacked) >= self.in_flight:
            return False
        batch = _Batch(value, count, size, self._next_sequence)
        self._next_sequence += count
        self.unacked.append(batch)
        self.history.sent.add(value)
        if not self.connected:
            self._try_again()
        elif len(self.unacked) == 1 or not self._alone:
            self._put(batch)
        return True

    def _put(self, batch: _Batch) -> None:
        data = idempotent_batch(batch.value, batch.records, batch.size, self.producer_id, batch.sequence)
        self.ask(lambda broker, reply: self._produce(broker, data, reply), lambda answer: self._answered(batch, answer))

    def _produce(self, broker: ServedBroker, data: bytes, reply: Callable[[Produced], None]) -> None:
        broker.produce(data, -1, reply)

    def _answered(self, batch: _Batch, answer: Produced | None) -> None:
        if answer is None or answer.error:
            what = "request without an answer" if answer is None else ErrorCode(answer.error).name
            self.history.seen[f"producer: {what}"] += 1
            if answer is not None and answer.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self.history.may_lose:
                self._begin_anew()
            self.disconnect()
            self._try_again()
            return
        self.history.on_acknowledged(batch.value, answer.base_offset, answer.base_offset + batch.records, answer.term)
        if batch not in self.unacked:
            return
        self.acknowledged_end = answer.base_offset + batch.records
        self.unacked.remove(batch)
        if self._alone:
            self._alone -= 1
            for waiting in list(self.unacked)[: 1 if self._alone else None]:
                self._put(waiting)

    def _begin_anew(self) -> None:
        """What was acknowledged is lost: continue under another id, as the Java client does with another epoch."""
        self.producer_id += _IDS
        self._next_sequence = 0
        for _ in range(len(self.unacked)):
            batch = self.unacked.popleft()._replace(sequence=self._next_sequence)
            self.unacked.append(batch)
            self._next_sequence += batch.records

    def _try_again(self) -> None:
        if not self._waits:
            self._waits = True
            self.cluster.after(self.timeout_us // 20, self._resend)

    def _resend(self) -> None:
        self._waits = False
        if self.unacked:
            self._alone = len(self.unacked)
            self.connect()
            self._put(self.unacked[0])


class PlainProducer(Client):
    """A producer without idempotence, with acks=1 or acks=all, that never sends anything twice."""

    def __init__(self, cluster: Cluster, number: int, group: int, timeout_us: int) -> None:
        super().__init__(cluster, f"plain producer {number}", group, timeout_us)

    def send(self, value: int, count: int, size: int) -> bool:
        """Send a batch."""
        if not self.connected:
            self.connect()
        acks = self.chance.choice((1, -1))
        data = idempotent_batch(value, count, size, -1, -1)
        self.history.sent.add(value)

        def answered(answer: Produced | None) -> None:
            if answer is None or answer.error:
                self.disconnect()
            elif acks == -1:
                self.history.on_acknowledged(value, answer.base_offset, answer.base_offset + count, answer.term)
            else:
                self.history.seen["acknowledgement by one disk"] += 1

        self.ask(lambda broker, reply: broker.produce(data, acks, reply), answered)
        return True


class Reader(Client):
    """A reader from the log start on; it asks for offsets and epochs on the way."""

    def __init__(self, cluster: Cluster, number: int, group: int, timeout_us: int) -> None:
        super().__init__(cluster, f"reader {number}", group, timeout_us)
        self.position = 0
        self._last_epoch = -1
        """Epoch of the last batch that was read."""
        self._known_epoch = -1
        """Newest leader epoch that an answer spoke of."""
        self._read_from = -1
        """Newest leader epoch that batches were read from."""
        self._busy = False

    def poll(self) -> bool:
        """Ask for something; false while an answer is awaited."""
        if self._busy:
            return False
        if not self.connected:
            self.connect()
        self._busy = True
        what = self.chance.random()
        if what < 0.8:
            self._fetch()
        elif what < 0.88:
            self._list(LATEST)
        elif what < 0.92:
            self._list(EARLIEST)
        elif what < 0.96:
            self._ask_barrier()
        else:
            self._ask_epoch()
        return True

    def _answered(self, answer: Any) -> bool:
        """Whether there is an answer without an error."""
        self._busy = False
        if answer is None or answer[0]:
            self.disconnect()
            return False
        return True

    def _fetch(self) -> None:
        offset, known = self.position, self._known_epoch
        epoch = -1 if self.chance.random() < 0.1 else known
        last_epoch = self._last_epoch if self.chance.random() < 0.5 else -1
        size = self.chance.choice((1, _FETCH_BYTES))

        def answered(answer: Fetched | None) -> None:
            if answer is not None and answer.term > self._known_epoch:
                self._known_epoch = answer.term
            knows = epoch >= self._read_from and epoch >= 0
            if answer is not None and answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._out_of_range(offset, knows=knows)
            if not self._answered(answer):
                return
            assert answer is not None
            if answer.diverging:
                if knows and not self.history.may_lose and offset >= self.history.trimmed:
                    raise Violation(f"C7: {self.name} at {offset} learns that its log diverges")
                return
            if answer.high_watermark > self.history.top and not self.history.may_lose:
                raise Violation(f"C4: a high watermark of {answer.high_watermark}, {self.history.top} is committed")
            self._take(answer, offset)

        self.ask(lambda broker, reply: broker.fetch(Offset(offset), epoch, last_epoch, size, reply), answered)

    def _out_of_range(self, offset: int, *, knows: bool) -> None:
        if offset < self.history.trimmed:
            self.history.seen["reader behind the log start"] += 1
            self.position, self._last_epoch = self.history.trimmed, -1
        elif knows and not self.history.may_lose:
            raise Violation(f"C7: {self.name} has read up to {offset}, which is out of range now")
        elif self.history.may_lose:
            self.position, self._last_epoch = min(offset, self.history.trimmed), -1

    def _take(self, answer: Fetched, offset: int) -> None:
        data, at = memoryview(answer.data), 0
        while at < len(data):
            batch = parse_batch(data, at, at, len(data))
            if not batch.base_offset <= offset <= batch.last_offset:
                raise Violation(f"C7: {self.name} asks for offset {offset} and gets {batch.base_offset}")
            check_sum(self.name, data[at : at + batch.size], batch)
            self.history.on_read(self.name, batch)
            at += batch.size
            offset = batch.last_offset + 1
            self._last_epoch = batch.leader_epoch
            self._read_from = max(self._read_from, answer.term)
        self.position = offset

    def _list(self, timestamp: int) -> None:
        latest = timestamp == LATEST
        floor = self.history.ends() if latest else self.history.starts()

        def answered(answer: tuple[int, int, int] | None) -> None:
            if not self._answered(answer) or self.history.may_lose:
                return
            assert answer is not None
            _, offset, term = answer
            needed = at_least(floor, term)
            if offset < needed:
                what = "end" if latest else "start"
                raise Violation(f"B7: the leader of term {term} has a log {what} of {offset}, it was {needed} before")
            if latest and offset > self.history.top:
                raise Violation(f"C4: the log ends at {offset}, {self.history.top} is committed")

        self.ask(lambda broker, reply: broker.list_offset(timestamp, reply), answered)

    def _ask_barrier(self) -> None:
        committed = self.history.top

        def answered(answer: tuple[int, int] | None) -> None:
            if not self._answered(answer):
                return
            assert answer is not None
            self.history.seen["read barrier"] += 1
            if answer[1] < committed and not self.history.may_lose:
                raise Violation(
                    f"A15: a read is served at {answer[1]}, {committed} was committed when it was asked for"
                )

        self.ask(lambda broker, reply: broker.read_barrier(reply), answered)

    def _ask_epoch(self) -> None:
        offset, of, current = self.position, self._last_epoch, self._known_epoch
        if of < 0:
            self._list(LATEST)
            return

        def answered(answer: tuple[int, int, int] | None) -> None:
            if not self._answered(answer) or self.history.may_lose or current < self._read_from:
                return
            assert answer is not None
            _, epoch, end = answer
            if offset >= self.history.trimmed and (epoch < of or end < offset):
                raise Violation(f"C7: {self.name} at {offset} of epoch {of} learns that epoch {epoch} ends at {end}")

        self.ask(lambda broker, reply: broker.epoch_end(current, of, reply), answered)


class Trimmer(Client):
    """Deletes records, but not past what a replica lacks."""

    def trim(self, offset: int) -> None:
        """Let the log start at ``offset``."""
        if not self.connected:
            self.connect()
        self.history.trimmed = max(self.history.trimmed, offset)

        def answered(answer: tuple[int, int, int] | None) -> None:
            if answer is None or answer[0]:
                self.disconnect()
                return
            self.history.seen["log start"] += 1
            if answer[1] > self.history.trimmed:
                raise Violation(
                    f"B7: the log starts at {answer[1]}, no client asked for more than {self.history.trimmed}"
                )
            self.history.on_trimmed(answer[1], answer[2])

        self.ask(lambda broker, reply: broker.delete_records(offset, reply), answered)


class GroupMember(Client):
    """A simple consumer that commits offsets, each larger than the last, and asks for them."""

    def __init__(self, cluster: Cluster, timeout_us: int) -> None:
        super().__init__(cluster, "group", OFFSETS_GROUP, timeout_us)
        self._offset = 0
        self._busy = False
        self._acked_in: dict[int, int] = {}
        self._unknown: set[int] = set()
        """Offsets whose commit was not answered: it may still come."""

    def poll(self) -> bool:
        """Commit or ask; false while an answer is awaited."""
        if self._busy:
            return False
        if not self.connected:
            self.connect()
        self._busy = True
        if self.chance.random() < 0.5:
            self._commit()
        else:
            self._fetch()
        return True

    def _answered(self, answer: Any) -> bool:
        self._busy = False
        if answer is None or answer[0]:
            if answer is not None:
                self.history.seen[f"group: {ErrorCode(answer[0]).name}"] += 1
            self.disconnect()
            return False
        return True

    def _commit(self) -> None:
        self._offset += 1
        offset = self._offset

        self._unknown.add(offset)

        def answered(answer: tuple[int, int] | None) -> None:
            if self._answered(answer):
                assert answer is not None
                self._unknown.discard(offset)
                self.history.seen["committed offset"] += 1
                self._acked_in[answer[1]] = offset

        self.ask(lambda broker, reply: broker.commit_offset(offset, reply), answered)

    def _fetch(self) -> None:
        floor = dict(self._acked_in)

        def answered(answer: tuple[int, int, int] | None) -> None:
            if not self._answered(answer):
                return
            assert answer is not None
            _, offset, term = answer
            if offset not in self._unknown and not at_least(floor, term) <= max(offset, 0) <= self._offset:
                needed = at_least(floor, term)
                raise Violation(f"D2: the coordinator of term {term} has offset {offset}, {needed} was committed")

        self.ask(lambda broker, reply: broker.committed_offset(reply), answered)
