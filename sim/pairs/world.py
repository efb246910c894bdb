"""The world of a pair: one life of a broker after another over one disk and one store, a controller, a clock.

Everything random comes from the seed. Verbs of clients run the world until they are answered, so that an operation is a
straight line of verbs. Time passes only when nothing else can happen.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from millstream.app import tiers
from millstream.cluster.metadata import resolved_config
from millstream.coordinator.asks import OFFSET_COMMIT, OFFSET_FETCH
from millstream.coordinator.hashing import OFFSETS_TOPIC
from millstream.coordinator.state_partition import State
from millstream.core.controller import requests
from millstream.core.controller.commands import FEATURE_LEVEL, ClusterCreated, FeatureLevelRaised
from millstream.core.controller.decide import decide
from millstream.core.controller.rules import Rules
from millstream.core.controller.state import ControllerState
from millstream.core.controller.topic_names import TRANSACTION_STATE
from millstream.core.txn.messages import AddPartitions, End, Identity, InitProducer
from millstream.core.txn.transaction import EPOCH_PER_TRANSACTION
from millstream.kafka.handlers.produce import append_here
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.partition.delete_records import delete_records
from millstream.partition.list_offsets import LATEST, list_offset
from millstream.partition.partition import Partition
from millstream.partition.read import read_here, read_older
from millstream.partition.verifying import ADDS_FROM, ProducerTransaction
from millstream.storage.chunks import ChunkDisk
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from millstream.wire.records import build_batch
from sim.brokers.served import _Call, _Polling
from sim.engine.disk import SimDisk
from sim.engine.local_storage import DATA_DIR
from sim.engine.objects import Faults, FaultyStore, MemoryStore
from sim.pairs.broker import SETTINGS, Broker
from sim.pairs.truth import Truth, Violation, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.config.topic_properties import TopicConfig
    from millstream.errors import MillstreamError
    from millstream.partition.read import FetchResult
    from sim.brokers.served import Produced
    from sim.engine.objects import Faults as StoreFaults

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
DAY_MS: Final = 86_400_000
TOPIC: Final = "t"
GROUP: Final = "g"
_ANSWER_US: Final = 120 * SECOND
"""Every verb is answered within this time."""
_TRIES: Final = 40
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)


class Refused(Exception):
    """The broker refuses what an operation asks for; the text is its sentence, or the name of its error."""


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
    """One history's. Lifecycle: made with the broker up; `close` at the end."""

    cache_faults = (0.0, 0.0)
    fills_on_write = True

    def __init__(self, seed: str, configs: dict[str, str]) -> None:
        self.chance = random.Random(f"pairs/{seed}")
        self.configs = configs
        """Of the topic, as it was created."""
        self.now_us = 1_700_000_000 * SECOND
        self.wall_offset_ms = 0
        self.storage_settings: dict[str, Any] = {}
        self.disk = SimDisk(self.chance)
        self.objects = MemoryStore(self.wall_ms)
        self.faulty = FaultyStore(self.objects, self.chance, Faults())
        self.store: Any = self.faulty
        self.slow_us = 2_000
        self.reads: Any = SimpleNamespace(begin=_begin)
        self.truth: Any = SimpleNamespace(note=_nothing)
        self.truths: dict[tuple[bytes, int], Truth] = {}
        self.committed = -1
        """The offset that a group was answered to have committed."""
        self.errors: list[str] = []
        """Lines of the broker's log that need a person."""
        self.expected: list[str] = []
        """What such lines may say, because an operation did what they speak of."""
        self._value = 0
        self._ids = 1_000
        self.broker: Broker | None = None
        self.found()
        self.create(TOPIC, configs)

    def found(self) -> None:
        """Make a cluster of an empty disk; the store stays."""
        self.controller = ControllerState()
        self.controller.apply(ClusterCreated("world", 1))
        self.controller.apply(FeatureLevelRaised(FEATURE_LEVEL))
        self.disk = SimDisk(self.chance)
        self.start()
        small = {"cleanup.policy": "compact", "internal.segment.bytes": "3000"}
        self.create(OFFSETS_TOPIC, small)
        self.create(TRANSACTION_STATE, small)
        self.committed = -1

    # What the parts of a broker ask for

    def begins_us(self, _: object) -> int:
        """How long a command of the archive process waits."""
        return self.delay_us()

    def delay_us(self) -> int:
        """Half of what a request to the store takes."""
        return 1 + int(self.slow_us * self.chance.random())

    def wall_ms(self) -> int:
        """The wall clock."""
        if self.broker is not None:
            return self.broker.shard.reactor.wall_ms()
        return self.now_us // 1000 + self.wall_offset_ms

    def topic_ids(self) -> list[bytes]:
        """Of all topics."""
        return list(self.controller.topics_by_id)

    def next_producer_id(self, done: Callable[[int], None]) -> None:
        """An id that no producer ever had."""
        self._ids += 1
        done(self._ids)

    def config(self, name: str) -> TopicConfig:
        """The resolved configuration of a topic."""
        return resolved_config(name, self.controller.topics[name].configs, SETTINGS)

    # The broker

    @property
    def up(self) -> Broker:
        """The broker, which is up."""
        assert self.broker is not None
        return self.broker

    def start(self) -> None:
        """Begin a life."""
        self.broker = Broker(self)

    def kill(self, *, torn: bool) -> None:
        """The power fails."""
        self._down()
        self.disk.crash(torn=torn)

    def stop(self) -> None:
        """An orderly stop."""
        self.up.groups.stop()
        done: list[int] = []
        self.up.shard.storage.stop(lambda: done.append(1))
        self.until(lambda: bool(done), "the broker does not stop")
        self._down()

    def _down(self) -> None:
        self.now_us = self.up.shard.reactor.now_us()
        self.up.is_up = False
        self.broker = None

    def until(self, holds: Callable[[], bool], otherwise: str, limit_us: int = _ANSWER_US) -> None:
        """Let things happen until something holds; a violation if it does not in time."""
        self.up.shard.run(holds, limit_us)
        if not holds():
            raise Violation(otherwise)

    def wait(self, duration_us: int) -> None:
        """Let time pass."""
        over: list[int] = []
        self.up.shard.reactor.call_later(duration_us, lambda: over.append(1))
        self.up.shard.run(lambda: bool(over), 2 * duration_us + SECOND)

    def set_wall_clock(self, by_ms: int) -> None:
        """Move the wall clock alone."""
        self.wall_offset_ms += by_ms
        self.up.shard.reactor.jump_ms = self.wall_offset_ms

    # The controller

    def decide(self, request: Any) -> tuple[Any, Sequence[Any]]:
        """Have the controller decide. Raises Refused with its sentence."""
        rules = Rules(0, SETTINGS, SETTINGS, lambda: self.chance.randbytes(16))
        decision = decide(self.controller, request, rules)
        first = decision.results[0]
        if first.error:
            raise Refused(first.message or first.error.name)
        for command in decision.commands:
            self.controller.apply(command)
        return first, decision.commands

    def create(self, name: str, configs: dict[str, str]) -> None:
        """Create a topic of one partition."""
        self.decide(requests.CreateTopics((requests.CreateTopic(name, 1, configs=tuple(configs.items())),)))
        self._opened(name, 0)

    def recover_topic(self) -> list[int]:
        """Recover the topic from the store, as ``millstream tiers recover`` does; where each partition ends."""

        def ask_all(question: str, asked: Any, timeout_ms: int = 0) -> list[Any]:
            _ = timeout_ms
            if question == tiers.RECREATE:
                name, topic_id, count, configs, _ = asked
                wanted = requests.CreateTopic(name, count, -1, (), tuple(configs.items()), bytes.fromhex(topic_id))
                self.decide(requests.CreateTopics((wanted,)))
                for index in range(count):
                    self.up.open(name, index, fresh=True)
            return [False]

        queries: Any = SimpleNamespace(ask_all=ask_all)
        with patch.object(tiers, "open_store", self._open_store):
            results = tiers.prepare_topics(queries, ChunkDisk(self.disk), DATA_DIR, "s3://world", [TOPIC])
            results += tiers.recover_topics(queries, "s3://world", [TOPIC])
        if errors := [one["error"] for one in results if one.get("error")]:
            raise Violation(f"the topic is not recovered: {errors[0]}")
        count = len(self.controller.topics[TOPIC].partitions)
        return [self.serving(TOPIC, index).high_watermark for index in range(count)]

    def _open_store(self, url: str, patience_s: float) -> MemoryStore:
        _ = url, patience_s
        return self.objects

    def _opened(self, name: str, index: int) -> None:
        self.up.open(name, index, fresh=True)
        self.truths[self.controller.topics[name].topic_id, index] = Truth()
        self.serving(name, index)
        self._note_policy()

    def delete(self) -> None:
        """Delete the topic."""
        topic = self.controller.topics[TOPIC]
        self.decide(requests.DeleteTopics((requests.TopicReference(TOPIC),)))
        for index in range(len(topic.partitions)):
            del self.truths[topic.topic_id, index]
        self.up.delete(TOPIC, topic.topic_id)

    def add_partition(self) -> None:
        """Give the topic another partition."""
        count = len(self.controller.topics[TOPIC].partitions) + 1
        self.decide(requests.CreatePartitions((requests.AddPartitions(TOPIC, count),)))
        self._opened(TOPIC, count - 1)

    def alter(self, changes: dict[str, str | None], *, replace: bool = False) -> None:
        """Set properties of the topic; None takes one back to its default. ``replace``: what is not named goes."""
        made = tuple(
            requests.ConfigChange(
                name, requests.ConfigOperation.DELETE if value is None else requests.ConfigOperation.SET, value
            )
            for name, value in changes.items()
        )
        self.decide(requests.AlterConfigs((requests.AlterTopic(TOPIC, made, replace),)))
        self._note_policy()
        self.up.configure(TOPIC, self.config(TOPIC))

    def _note_policy(self) -> None:
        """What may be gone from now on."""
        topic = self.controller.topics.get(TOPIC)
        if topic is None:
            return
        config = self.config(TOPIC)
        for index in range(len(topic.partitions)):
            truth = self.truths.get((topic.topic_id, index))
            if truth is not None:
                truth.compacts |= config.is_compacted
                truth.expires |= "delete" in config.cleanup_policy and (
                    config.retention_ms >= 0 or config.retention_bytes >= 0
                )
                truth.keeps_keys &= not config.has_events

    # Clients

    def serving(self, name: str = TOPIC, index: int = 0) -> Partition:
        """A partition, once it is served."""
        self.until(
            lambda: self.up.partition(name, index) is not None,
            f"{name}/{index} is not served: {getattr(self.up.table.find(name, index), 'reason', 'it is not there')}",
        )
        found = self.up.partition(name, index)
        assert found is not None
        return found

    def truth_of(self, index: int = 0) -> Truth:
        """Of a partition of the topic."""
        return self.truths[self.controller.topics[TOPIC].topic_id, index]

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
        truth, config = self.truth_of(index), self.config(TOPIC)
        data = build_batch(
            [(one.key, one.value, (), one.timestamp or 0) for one in records],
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=who.sequence,
            transactional=bool(who.transactional_id),
        )
        if config.message_timestamp_type != "CreateTime" or config.has_events:
            records = [one._replace(timestamp=None) for one in records]
        for one in records:
            truth.unknown[one.value] = one
        version = ADDS_FROM if who.adds else ADDS_FROM - 1
        transaction = ProducerTransaction(who.transactional_id, version) if who.transactional_id else None
        answer = self._retried(lambda: self._append(index, data, acks, transaction))
        for number, one in enumerate(records):
            del truth.unknown[one.value]
            if not answer.error:
                truth.acknowledge(answer.base_offset + number, one)
        if answer.error:
            raise Refused(ErrorCode(answer.error).name)
        return answer.base_offset

    def _append(self, index: int, data: bytes, acks: int, transaction: ProducerTransaction | None) -> Produced:
        partition, answers = self.serving(TOPIC, index), list["Produced"]()
        call: Any = _Call(partition, acks, answers.append, transaction)
        append_here(self.up.node, partition, memoryview(data), call, 0, self.wall_ms())
        self.until(lambda: bool(answers), "a produce is not answered")
        return answers[0]

    def _retried(self, ask: Callable[[], Any]) -> Any:
        answer: Any = None
        for _ in range(_TRIES):
            answer = ask()
            error = answer if isinstance(answer, ErrorCode) else answer.error
            if error not in _RETRIABLE:
                break
            self.wait(SECOND)
        return answer

    def coordinate(self, request: Callable[[Any], Any]) -> Identity:
        """Ask the coordinator of transactions, again while the error is retriable. Raises Refused."""

        def ask() -> Any:
            answers: list[Any] = []
            self.up.coordinate(request, answers.append)
            self.until(lambda: bool(answers), "a coordinator does not answer")
            return answers[0]

        answer = self._retried(ask)
        error = answer.error if isinstance(answer, Identity) else answer
        if error is not ErrorCode.NONE:
            raise Refused(error.name)
        return answer

    def begin(self, name: str, timeout_ms: int = 60_000) -> Producing:
        """InitProducerId of a transactional id."""
        found = self.coordinate(lambda token: InitProducer(token, name, timeout_ms))
        return Producing(found.producer_id, found.producer_epoch, 0, name, self.chance.random() < 0.5)

    def end(self, who: Producing, *, commits: bool) -> Producing:
        """EndTxn; the producer of the next transaction."""
        name = who.transactional_id
        found = self.coordinate(
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
            self.up.coordinate(
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
        self._ids += 1
        return Producing(self._ids, 0, 0)

    def delete_records(self, offset: int, index: int = 0) -> int:
        """DeleteRecords; the log start that was answered."""
        truth, partition, answers = self.truth_of(index), self.serving(TOPIC, index), list[tuple[int, int]]()
        asked = partition.high_watermark if offset < 0 else offset
        before, truth.asked_start = truth.asked_start, max(truth.asked_start, asked)
        delete_records(partition, Offset(offset), answers.append)
        self.until(lambda: bool(answers), "DeleteRecords is not answered")
        error, start = answers[0]
        if error:
            truth.asked_start = before
            raise Refused(ErrorCode(error).name)
        truth.start = max(truth.start, start)
        return start

    def list_offset(self, timestamp: int, index: int = 0, isolation: int = 0) -> tuple[int, int]:
        """(timestamp, offset) of ListOffsets."""

        def ask() -> Any:
            answers: list[tuple[int, int, int, int]] = []
            list_offset(self.serving(TOPIC, index), timestamp, -1, isolation, answers.append)
            self.until(lambda: bool(answers), "ListOffsets is not answered")
            error, at, offset, _ = answers[0]
            return SimpleNamespace(error=ErrorCode(error), found=(at, offset))

        answer = self._retried(ask)
        if answer.error:
            raise Refused(answer.error.name)
        return answer.found

    def latest(self, index: int = 0) -> int:
        """LATEST, which never goes back."""
        truth = self.truth_of(index)
        _, end = self.list_offset(LATEST, index)
        if end < truth.latest:
            raise Violation(f"LATEST of {TOPIC}/{index} goes back from {truth.latest} to {end}")
        truth.latest = end
        return end

    def fetch(self, offset: int, index: int = 0, *, committed: bool = False) -> FetchResult:
        """Whole batches from an offset on; the data are the caller's to release."""
        partition, answers = self.serving(TOPIC, index), list["FetchResult"]()
        watch: Any = _Polling()
        found = read_here(partition, Offset(offset), 8_000, -1, watch, minimum_one=True, committed=committed)
        if found is not None:
            return found
        read_older(partition, Offset(offset), 8_000, answers.append, minimum_one=True, committed=committed)
        self.until(lambda: bool(answers), "a fetch is not answered")
        return answers[0]

    def commit_offset(self, offset: int) -> None:
        """OffsetCommit of a group."""
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        wanted = [OffsetCommitRequestTopic(name=TOPIC, partitions=[part])]
        request = OffsetCommitRequest(group_id=GROUP, topics=wanted)

        def error_of(answer: Any) -> ErrorCode:
            if isinstance(answer, OffsetCommitResponse):
                return ErrorCode(answer.topics[0].partitions[0].error_code)
            return answer

        def ask() -> Any:
            return error_of(self._ask_group(OFFSET_COMMIT, request))

        error = self._retried(ask)
        if error:
            raise Refused(error.name)
        self.committed = offset

    def committed_offset(self) -> int:
        """OffsetFetch of the group."""
        request = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
        self.until(self._groups_loaded, "the groups are not loaded")
        answer = self._ask_group(OFFSET_FETCH, request)
        assert isinstance(answer, OffsetFetchResponseGroup), answer
        return next((one.partitions[0].committed_offset for one in answer.topics if one.name == TOPIC), -1)

    def _groups_loaded(self) -> bool:
        states = [one.state for one in self.up.groups.partitions.values()]
        return bool(states) and all(one is State.ACTIVE for one in states)

    def _ask_group(self, api: int, request: Any) -> Any:
        answers: list[MillstreamError | Any] = []
        self.up.groups.ask(0, api, 8, "world", "/", request, False, answers.append)
        self.until(lambda: bool(answers), "a group is not answered")
        return answers[0]

    def set_store(self, chances: StoreFaults) -> None:
        """How the store fails from now on."""
        self.faulty.chances = chances


def _begin(*_: object) -> Callable[[], None]:
    return _nothing


def _nothing(*_: object) -> None:
    """Reads of archived objects are not judged here."""
