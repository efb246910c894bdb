"""The world of a pair: what clients and an administrator do, over brokers (`single`, `several`), a store and a clock.

Everything random comes from the seed. Verbs of clients run the world until they are answered, so that an operation is a
straight line of verbs. Time passes only when nothing else can happen.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import random
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from millstream.app import tiers
from millstream.cluster.topic_table import resolved_config
from millstream.config.settings import Settings
from millstream.coordinator.asks import OFFSET_COMMIT, OFFSET_FETCH, Ask
from millstream.coordinator.state_partition import State
from millstream.core.controller import requests
from millstream.core.controller.state import ControllerState
from millstream.core.controller.topic_names import GROUP_METADATA
from millstream.core.txn.image import EPOCH_PER_TRANSACTION
from millstream.core.txn.messages import AddPartitions, End, Identity, InitProducer
from millstream.errors import MillstreamError
from millstream.kafka.handlers.data.produce import append_here
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.partition.append.batch import ADDS_FROM, ProducerTransaction
from millstream.partition.delete_records import delete_records
from millstream.partition.partition import Partition
from millstream.partition.read.batches import read_here, read_older
from millstream.partition.read.list_offsets import LATEST, list_offset
from millstream.partition.read.request import ReadRequest
from millstream.storage.chunks import ChunkDisk
from millstream.wire.batch import CONTROL
from millstream.wire.records import batch_crc_ok, build_batch, iter_batches, iter_records, unpack_header
from sim.brokers.transactions import AGAIN
from sim.engine.disk import SimDisk
from sim.engine.local_storage import DATA_DIR
from sim.engine.objects import Faults, FaultyStore, MemoryStore
from sim.engine.requests import (
    Polling,
    ProduceCall,
    Produced,
    commit_error,
    commit_request,
    fetch_request,
    fetched_offsets,
)
from sim.engine.timeline import SECOND
from sim.engine.violation import Violation
from sim.pairs.kinds import KINDS, TOPIC
from sim.pairs.sharing import Sharing
from sim.pairs.truth import Refused, Truth, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.config.topic_properties import TopicConfig
    from millstream.coordinator.local_groups import LocalGroups
    from millstream.partition.read.batches import FetchResult
    from sim.engine.objects import Faults as StoreFaults
    from sim.pairs.kinds import Kind

MINUTE: Final = 60 * SECOND
DAY_MS: Final = 86_400_000
GROUPS: Final = ("g", "h", "i")
_ANSWER_US: Final = 120 * SECOND
"""Every verb is answered within this time."""
TRIES: Final = 40
_RETRIES: Final = 180
"""A second each: beside a slow store it takes minutes after a restart until the end of a log is known."""
_RETRIABLE: Final = AGAIN | {ErrorCode.OFFSET_NOT_AVAILABLE}


class Producing(NamedTuple):
    """Who writes: nothing of it for a plain producer."""

    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional_id: str = ""
    adds: bool = True
    """It leaves adding partitions to the broker, and each transaction ends with a new epoch (KIP-890)."""


PLAIN: Final = Producing()


class World:
    """The verbs of clients and of an administrator. `Single` and `Several` say what brokers there are."""

    cache_faults = (0.0, 0.0)
    fills_on_write = True
    replicas = 1
    """Of a topic, as it is created."""
    rest_us = 30 * MINUTE
    """In this time everything that waits is done: an archiver that failed often waits for a minute, a join for ten."""
    look_us = 45 * SECOND
    """Between looks at whether all has come to rest."""
    one_disk_promises = True
    """What is acknowledged with acks=1 stays."""

    def __init__(self, seed: str, kind: Kind) -> None:
        self.chance = random.Random(f"pairs/{seed}")
        self.kind = kind
        self.settings = Settings(data_dir=DATA_DIR, objects_url="s3://world", **kind.settings)
        self.storage_settings: dict[str, Any] = {}
        self.objects = MemoryStore(self.wall_ms)
        self.faulty = FaultyStore(self.objects, self.chance, Faults())
        self.store: Any = self.faulty
        self.slow_us = 2_000
        self.reads: Any = SimpleNamespace(begin=_begin)
        self.truth: Any = SimpleNamespace(note=_nothing)
        self.truths: dict[tuple[bytes, int], Truth] = {}
        self.committed: dict[str, int] = {}
        """The offset that each group was answered to have committed."""
        self.sharing = Sharing(self)
        """The share group, if an operation uses it."""
        self.errors: list[str] = []
        """Lines of the brokers' log that need a person."""
        self.expected: list[str] = []
        """What such lines may say, because an operation did what they speak of."""
        self._sent: list[tuple[Truth, Sequence[Written], list[Produced]]] = []
        """Batches whose answers no verb waits for."""
        self._reads: list[tuple[Any, list[int]]] = []
        """Of reads that no verb waits for: the partitions of the broker that was asked, and the error."""
        self._value = 0
        self._idempotent = 1 << 40
        self.found()
        self.create(TOPIC, KINDS["local"].configs if kind.is_internal else kind.configs)

    # What brokers there are

    @property
    def controller(self) -> ControllerState:
        """What the controller has decided."""
        raise NotImplementedError

    @property
    def clock_is_back(self) -> bool:
        """Whether a wall clock was set back."""
        raise NotImplementedError

    def next_producer_id(self, done: Callable[[Any], None]) -> None:
        """An id that no producer ever had."""
        raise NotImplementedError

    def found(self) -> None:
        """Make a cluster of empty disks, with internal topics; the store stays."""
        raise NotImplementedError

    def start(self) -> None:
        """Start all brokers."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop all brokers in order."""
        raise NotImplementedError

    def kill(self, *, torn: bool) -> None:
        """The power of all brokers fails."""
        raise NotImplementedError

    def heal(self) -> None:
        """Brokers are up and reach each other."""
        raise NotImplementedError

    def lives(self) -> list[Any]:
        """The brokers that are up."""
        raise NotImplementedError

    def disks(self) -> list[SimDisk]:
        """Of all brokers."""
        raise NotImplementedError

    def run(self, holds: Callable[[], bool], limit_us: int) -> None:
        """Let things happen until something holds, or for so long."""
        raise NotImplementedError

    def wait(self, duration_us: int) -> None:
        """Let time pass."""
        raise NotImplementedError

    def pause(self, duration_us: int) -> None:
        """Let time pass for what happens by itself. It has as much as it needs at rest."""
        self.wait(duration_us)

    def wall_ms(self) -> int:
        """The clock of clients and of the store."""
        raise NotImplementedError

    def set_wall_clock(self, by_ms: int) -> None:
        """Move the wall clock of a broker alone."""
        raise NotImplementedError

    def decide(self, request: Any) -> Any:
        """Have the controller decide. Raises Refused with its sentence."""
        raise NotImplementedError

    def opens(self, name: str, index: int) -> None:
        """The controller has made a partition; in a cluster brokers learn of it by themselves."""

    def configures(self, name: str) -> None:
        """The controller has changed properties of a topic."""

    def deletes(self, name: str, topic_id: bytes) -> None:
        """The controller has deleted a topic."""

    def serving(self, name: str, index: int = 0) -> Partition:
        """A partition where it is led, once it is. Raises Refused if that cannot be."""
        raise NotImplementedError

    def broker_of(self, name: str, index: int) -> Any:
        """The broker that leads a partition, once there is one."""
        raise NotImplementedError

    def node_of(self, name: str, index: int) -> Any:
        """What the handlers of the broker see that leads a partition."""
        return self.broker_of(name, index).node

    def coordinate(self, request: Callable[[Any], Any], done: Callable[[Any], None]) -> None:
        """Ask the coordinator of transactions; ``request`` makes a request of the token for its answer."""
        raise NotImplementedError

    def groups(self) -> LocalGroups:
        """Where the coordinator of groups is."""
        raise NotImplementedError

    def lag(self, name: str, index: int) -> str:
        """Which replicas of a partition lack something; empty if all have all."""
        _ = name, index
        return ""

    def check_replicas(self) -> None:
        """All replicas of a partition have the same."""

    def until(self, holds: Callable[[], bool], otherwise: str, limit_us: int = _ANSWER_US) -> None:
        """Let things happen until something holds; a violation if it does not in time."""
        self.run(holds, limit_us)
        if not holds():
            raise Violation(otherwise)

    # What the parts of a broker ask for

    def begins_us(self, _: object) -> int:
        """How long a command of the archive process waits."""
        return self.delay_us()

    def delay_us(self) -> int:
        """Half of what a request to the store takes."""
        return 1 + int(self.slow_us * self.chance.random())

    def config(self, name: str) -> TopicConfig:
        """The resolved configuration of a topic."""
        return resolved_config(name, self.controller.topics[name].configs, self.settings)

    # The controller

    def create(self, name: str, configs: dict[str, str], replicas: int | None = None) -> None:
        """Create a topic of one partition."""
        wanted = requests.CreateTopic(name, 1, replicas or self.replicas, configs=tuple(configs.items()))
        self.decide(requests.CreateTopics((wanted,)))
        self._opened(name, 0)

    def recover_topic(self) -> list[int]:
        """Recover the topic from the store, as ``millstream tiers recover`` does; where each partition ends."""

        def ask_all(question: str, asked: Any, timeout_ms: int = 0) -> list[Any]:
            _ = timeout_ms
            if question == tiers.RECREATE:
                name, topic_id, count, configs, _ = asked
                properties = tuple(configs.items())
                wanted = requests.CreateTopic(name, count, self.replicas, (), properties, bytes.fromhex(topic_id))
                self.decide(requests.CreateTopics((wanted,)))
                for index in range(count):
                    self.opens(name, index)
            return [False]

        queries: Any = SimpleNamespace(ask_all=ask_all)
        with patch.object(tiers, "open_store", self._open_store):
            results = [
                one
                for disk in self.disks()
                for one in tiers.prepare_topics(queries, ChunkDisk(disk), DATA_DIR, "s3://world", [TOPIC])
            ]
            results += tiers.recover_topics(queries, "s3://world", [TOPIC])
        if errors := [one["error"] for one in results if one.get("error")]:
            raise Violation(f"the topic is not recovered: {errors[0]}")
        topic = self.controller.topics[TOPIC]
        if (topic.topic_id, 0) not in self.truths:
            raise Violation("another topic of the name is recovered")
        count = len(topic.partitions)
        return [self.serving(TOPIC, index).high_watermark for index in range(count)]

    def _open_store(self, url: str, patience_s: float) -> MemoryStore:
        _ = url, patience_s
        return self.objects

    def _opened(self, name: str, index: int) -> None:
        self.opens(name, index)
        self.truths[self.controller.topics[name].topic_id, index] = Truth()
        self._note_policy(name)
        self.serving(name, index)

    def delete(self) -> None:
        """Delete the topic of the kind, and what groups have committed with it."""
        name = self.kind.name
        topic = self.controller.topics[name]
        self.decide(requests.DeleteTopics((requests.TopicReference(name),)))
        for index in range(len(topic.partitions)):
            del self.truths[topic.topic_id, index]
        self.deletes(name, topic.topic_id)
        if name == GROUP_METADATA:
            self.committed.clear()
        elif name == TOPIC:
            self.committed = dict.fromkeys(self.committed, -1)

    def add_partition(self) -> None:
        """Give the topic of the kind another partition."""
        name = self.kind.name
        count = len(self.controller.topics[name].partitions) + 1
        self.decide(requests.CreatePartitions((requests.AddPartitions(name, count),)))
        self._opened(name, count - 1)

    def alter(self, changes: dict[str, str | None], *, replace: bool = False) -> None:
        """Set properties of the topic of the kind; None takes one back to its default, ``replace`` also all others."""
        made = tuple(
            requests.ConfigChange(
                name, requests.ConfigOperation.DELETE if value is None else requests.ConfigOperation.SET, value
            )
            for name, value in changes.items()
        )
        name = self.kind.name
        self.decide(requests.AlterConfigs((requests.AlterTopic(name, made, replace),)))
        self._note_policy(name)
        self.configures(name)

    def _note_policy(self, name: str) -> None:
        """What may be gone from now on."""
        topic, config = self.controller.topics[name], self.config(name)
        for index in range(len(topic.partitions)):
            truth = self.truths.get((topic.topic_id, index))
            if truth is not None:
                truth.compacts |= config.is_compacted
                truth.expires |= "delete" in config.cleanup_policy and (
                    config.retention_ms >= 0 or config.retention_bytes >= 0
                )
                truth.keeps_keys &= not config.has_events

    # Clients

    def truth_of(self, index: int = 0, name: str = TOPIC) -> Truth:
        """Of a partition."""
        return self.truths[self.controller.topics[name].topic_id, index]

    def record(
        self, size: int = 300, key: bytes | None = b"", timestamp: int | None = None, *, once: bool = False
    ) -> Written:
        """Another record; ``key`` is one of a few unless it is given."""
        self._value += 1
        made = self.chance.choice((b"a", b"b", b"c", b"d")) if key == b"" else key
        now_ms = self.wall_ms() + self.chance.randint(-900, 900) if timestamp is None else timestamp
        body = b'"%d %s"' % (self._value, b"x" * self.chance.randint(0, size))
        return Written(made, body, now_ms, once)

    def produce(self, records: Sequence[Written], who: Producing = PLAIN, index: int = 0, acks: int = -1) -> int:
        """Write a batch, again while the error is retriable; the offset of its first record."""
        truth = self.truth_of(index)
        data, records = self._batch(records, who, truth)
        version = ADDS_FROM if who.adds else ADDS_FROM - 1
        transaction = ProducerTransaction(who.transactional_id, version) if who.transactional_id else None
        tries: list[Produced] = []

        def ask() -> Produced:
            tries.append(self._append(index, data, acks, transaction))
            return tries[-1]

        answer = self._retried(ask)
        if len(tries) > 1 and who.producer_id < 0:
            truth.repeated.update(one.value for one in records)
        promised = acks == -1 or self.one_disk_promises
        for number, one in enumerate(records):
            if promised and answer.error != ErrorCode.REQUEST_TIMED_OUT:
                del truth.unknown[one.value]
            if promised and not answer.error:
                truth.acknowledge(answer.base_offset + number, one)
        if answer.error:
            raise Refused(ErrorCode(answer.error).name)
        return answer.base_offset

    def _batch(self, records: Sequence[Written], who: Producing, truth: Truth) -> tuple[bytes, Sequence[Written]]:
        """A batch that is about to be sent, and its records as they will be read."""
        data = build_batch(
            [(one.key, one.value, (), one.timestamp or 0) for one in records],
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=who.sequence,
            transactional=bool(who.transactional_id),
        )
        config = self.config(TOPIC)
        if config.message_timestamp_type != "CreateTime" or config.has_events:
            records = [one._replace(timestamp=None) for one in records]
        truth.unknown.update((one.value, one) for one in records)
        return data, records

    def send(self) -> None:
        """Write batches without waiting for their answers, and let some things happen: the next verb meets them on the
        way.
        """
        truth, left = self.truth_of(), self.chance.randint(0, 60)
        for _ in range(self.chance.randint(1, 3)):
            data, records = self._batch([self.record() for _ in range(2)], PLAIN, truth)
            with suppress(Refused):
                self._sent.append((truth, records, self._begin_append(0, data, -1, None)))

        def holds() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        self.run(holds, SECOND)

    def hear(self) -> None:
        """Take the answers to what was sent that have come."""
        heard = [one for one in self._sent if one[2]]
        self._sent = [one for one in self._sent if not one[2]]
        for truth, records, answers in heard:
            if not answers[0].error:
                for number, one in enumerate(records):
                    truth.unknown.pop(one.value, None)
                    truth.acknowledge(answers[0].base_offset + number, one)

    def _begin_append(
        self, index: int, data: bytes, acks: int, transaction: ProducerTransaction | None
    ) -> list[Produced]:
        """Where the answer will be."""
        partition, answers = self.serving(TOPIC, index), list[Produced]()
        call: Any = ProduceCall(partition, acks, answers.append, transaction)
        append_here(self.node_of(TOPIC, index), partition, memoryview(data), call, 0)
        return answers

    def _append(self, index: int, data: bytes, acks: int, transaction: ProducerTransaction | None) -> Produced:
        answers = self._begin_append(index, data, acks, transaction)
        if self.waits_for_store:
            self.run(lambda: bool(answers), _ANSWER_US)
            return answers[0] if answers else Produced(ErrorCode.REQUEST_TIMED_OUT, -1, -1)
        self.until(lambda: bool(answers), "a produce is not answered")
        return answers[0]

    @property
    def waits_for_store(self) -> bool:
        """Whether what is acknowledged has to be in the store, which fails."""
        return self.settings.shared_wal == "object" and self.faulty.chances != Faults()

    def _retried(self, ask: Callable[[], Any]) -> Any:
        answer: Any = None
        for _ in range(_RETRIES):
            answer = ask()
            error = answer if isinstance(answer, ErrorCode) else answer.error
            if error not in _RETRIABLE:
                break
            self.wait(SECOND)
        return answer

    def ask_coordinator(self, request: Callable[[Any], Any]) -> Identity:
        """Ask the coordinator of transactions, again while the error is retriable. Raises Refused."""

        def ask() -> Any:
            answers: list[Any] = []
            self.coordinate(request, answers.append)
            self.until(lambda: bool(answers), "a coordinator does not answer")
            return answers[0]

        answer = self._retried(ask)
        error = answer.error if isinstance(answer, Identity) else answer
        if error is not ErrorCode.NONE:
            raise Refused(error.name)
        return answer

    def begin(self, name: str, timeout_ms: int = 60_000) -> Producing:
        """InitProducerId of a transactional id."""
        found = self.ask_coordinator(lambda token: InitProducer(token, name, timeout_ms))
        return Producing(found.producer_id, found.producer_epoch, 0, name, self.chance.random() < 0.5)

    def end(self, who: Producing, *, commits: bool) -> Producing:
        """EndTxn; the producer of the next transaction."""
        name = who.transactional_id
        found = self.ask_coordinator(
            lambda token: End(
                token, name, who.producer_id, who.epoch, commits, EPOCH_PER_TRANSACTION if who.adds else 0
            )
        )
        return Producing(found.producer_id, found.producer_epoch, 0, name, who.adds) if who.adds else who

    def add(self, who: Producing, index: int = 0) -> None:
        """AddPartitionsToTxn."""
        name, places = who.transactional_id, ((TOPIC, index),)

        def ask() -> Any:
            answers: list[Any] = []
            self.coordinate(
                lambda token: AddPartitions(token, name, who.producer_id, who.epoch, places, False, 0), answers.append
            )
            self.until(lambda: bool(answers), "a coordinator does not answer")
            found = answers[0]
            return found[0] if isinstance(found, tuple) and not isinstance(found, Identity) else found

        answer = self._retried(ask)
        error = answer.error if isinstance(answer, Identity) else answer
        if error is not ErrorCode.NONE:
            raise Refused(error.name)

    def idempotent(self) -> Producing:
        """A producer without transactions."""
        self._idempotent += 1
        return Producing(self._idempotent, 0, 0)

    def delete_records(self, offset: int, index: int = 0) -> int:
        """DeleteRecords, again while the error is retriable; the log start that was answered."""
        truth, tries = self.truth_of(index), list[int]()
        before = truth.asked_start

        def ask() -> Any:
            tries.append(index)
            partition, answers = self.serving(TOPIC, index), list[tuple[int, int]]()
            truth.asked_start = max(truth.asked_start, partition.high_watermark if offset < 0 else offset)
            delete_records(partition, Offset(offset), answers.append)
            self.until(lambda: bool(answers), "DeleteRecords is not answered")
            error, start = answers[0]
            return SimpleNamespace(error=ErrorCode(error), start=start)

        answer = self._retried(ask)
        if answer.error:
            if len(tries) == 1:
                truth.asked_start = before
            raise Refused(answer.error.name)
        truth.start = max(truth.start, answer.start)
        return answer.start

    def list_offset(self, timestamp: int, index: int = 0, name: str = TOPIC) -> tuple[int, int]:
        """(timestamp, offset) of ListOffsets."""

        def ask() -> Any:
            answers: list[tuple[int, int, int, int]] = []
            list_offset(self.serving(name, index), timestamp, -1, 0, answers.append)
            self.until(lambda: bool(answers), "ListOffsets is not answered")
            error, at, offset, _ = answers[0]
            return SimpleNamespace(error=ErrorCode(error), found=(at, offset))

        answer = self._retried(ask)
        if answer.error:
            raise Refused(answer.error.name)
        return answer.found

    def latest(self, index: int = 0, name: str = TOPIC) -> int:
        """LATEST, which never goes back."""
        truth = self.truth_of(index, name)
        _, end = self.list_offset(LATEST, index, name)
        if end < truth.latest:
            raise Violation(f"LATEST of {name}/{index} goes back from {truth.latest} to {end}")
        truth.latest = end
        return end

    def fetch(self, offset: int, index: int = 0, name: str = TOPIC, *, committed: bool = False) -> FetchResult:
        """Whole batches from an offset on; the data are the caller's to release."""
        partition, answers = self.serving(name, index), list["FetchResult"]()
        watch: Any = Polling()
        found = read_here(partition, ReadRequest(Offset(offset), 8_000, committed=committed), watch)
        if found is not None:
            return found
        read_older(partition, ReadRequest(Offset(offset), 8_000, committed=committed), answers.append)
        self.until(lambda: bool(answers), "a fetch is not answered")
        return answers[0]

    def forget_cached(self) -> None:
        """The log caches give up what is in files, as if other logs needed their memory."""
        for one in self.lives():
            one.shard.storage.memory._evict(1 << 22)

    def begin_reads(self, count: int) -> None:
        """Read from some offsets without waiting for the answers: the next verbs meet the reads."""
        partition, truth = self.serving(TOPIC), self.truth_of()
        start, table = partition.log.start_offset, self.broker_of(TOPIC, 0).table
        for _ in range(count):
            offset = Offset(self.chance.randint(start, max(start, partition.high_watermark - 1)))
            answers: list[int] = []
            self._reads.append((table, answers))

            def read(found: FetchResult, answers: list[int] = answers) -> None:
                answers.append(found.error_code)
                if found.data is not None:
                    if not partition.config.has_events:
                        _check_values(truth, memoryview(bytes(found.data.copy(0, len(found.data)))))
                    found.data.release()

            watch: Any = Polling()
            committed = self.chance.random() < 0.5
            cached = read_here(partition, ReadRequest(offset, 8_000, committed=committed), watch)
            if cached is not None:
                read(cached)
            else:
                read_older(partition, ReadRequest(offset, 8_000, committed=committed), read)

    def waiting_reads(self) -> int:
        """Reads that a broker which is up has not answered."""
        tables = [one.table for one in self.lives()]
        self._reads = [one for one in self._reads if one[0] in tables and not one[1]]
        return len(self._reads)

    def commit_offset(self, offset: int) -> None:
        """OffsetCommit of one of the groups."""
        group = self.chance.choice(GROUPS)
        request = commit_request(group, TOPIC, offset)
        error = self._retried(lambda: commit_error(self._ask_group(OFFSET_COMMIT, request)))
        if error:
            raise Refused(error.name)
        self.committed[group] = offset

    def committed_offset(self, group: str) -> int:
        """OffsetFetch of a group."""
        self.until(self._groups_loaded, "the groups are not loaded")
        error, offsets = fetched_offsets(self._ask_group(OFFSET_FETCH, fetch_request(group)))
        assert not error, error
        return offsets.get(TOPIC, -1)

    def _groups_loaded(self) -> bool:
        states = [one.state for one in self.groups().partitions.values()]
        return bool(states) and all(one is State.ACTIVE for one in states)

    def _ask_group(self, api: int, request: Any) -> Any:
        answers: list[MillstreamError | Any] = []
        self.groups().ask(Ask(api, 0, 8, "world", "/", False, b""), request, answers.append)
        self.until(lambda: bool(answers), "a group is not answered")
        return answers[0]

    def set_store(self, chances: StoreFaults) -> None:
        """How the store fails from now on."""
        self.faulty.chances = chances


def _check_values(truth: Truth, data: memoryview) -> None:
    """A read has whole batches of what clients wrote."""
    for batch in iter_batches(data):
        if not batch_crc_ok(batch):
            raise Violation("a read has a batch with wrong bytes")
        if not unpack_header(batch, 0)[5] & CONTROL:
            for one in iter_records(batch):
                if not truth.known(one.value or b""):
                    raise Violation(f"a read has what no client wrote: {one.value!r}")


def _begin(*_: object) -> Callable[[], None]:
    return _nothing


def _nothing(*_: object) -> None:
    """Reads of archived objects are not judged here."""
