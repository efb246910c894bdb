"""Stand-ins for the parts around the coordinator: a reactor with a hand-moved clock, logs in memory, shards in one
process.

What was appended survives ``Broker.restart``; what was not durable (``FakePartition.persist`` not called) does not.
"""

import heapq
from collections import deque
from itertools import count
from types import SimpleNamespace

import msgspec

from millstream.cluster.metadata import MetadataListener
from millstream.config.settings import Settings
from millstream.coordinator.finding import Coordinators
from millstream.coordinator.hashing import OFFSETS_TOPIC
from millstream.coordinator.router import GroupRouter
from millstream.core.controller.state import ControllerState
from millstream.core.txn.partition_state import PartitionTransactions
from millstream.errors import MillstreamError, Rejected, Retriable
from millstream.model.error_code import ErrorCode
from millstream.telemetry.metrics import StatsSlab
from millstream.wire.records import (
    ABORT,
    COMMIT,
    build_batch,
    control_record,
    iter_batches,
    iter_records,
    parse_header,
)


class FakeTimer:
    def __init__(self, deadline_us, callback):
        self.deadline_us = deadline_us
        self.callback = callback

    def cancel(self):
        self.callback = None


class FakeReactor:
    def __init__(self):
        self.us = 1_000_000
        self.ready = deque()
        self.enders = []
        self.timers = []
        self.order = count()

    def now_us(self):
        return self.us

    def wall_ms(self):
        return 1_700_000_000_000 + self.us // 1000

    def call_soon(self, callback, *args):
        self.ready.append((callback, args))

    def end_of_turn(self, callback):
        self.enders.append(callback)

    def call_at(self, deadline_us, callback):
        timer = FakeTimer(deadline_us, callback)
        heapq.heappush(self.timers, (deadline_us, next(self.order), timer))
        return timer

    def call_later(self, delay_us, callback):
        return self.call_at(self.us + delay_us, callback)

    def background(self, work, generator, share, done=None):
        assert work in ("loading", "expiry", "other")
        assert 0 < share <= 1

        def slice_():
            try:
                next(generator)
            except StopIteration:
                if done is not None:
                    done()
            else:
                self.call_soon(slice_)

        self.call_soon(slice_)

    def turn(self):
        """Run everything that is ready, and the ends of turns; timers that are due, too."""
        while self.ready or self.enders or (self.timers and self.timers[0][0] <= self.us):
            while self.timers and self.timers[0][0] <= self.us:
                timer = heapq.heappop(self.timers)[2]
                if timer.callback is not None:
                    callback, timer.callback = timer.callback, None
                    callback()
            while self.ready:
                callback, args = self.ready.popleft()
                callback(*args)
            enders, self.enders = self.enders, []
            for callback in enders:
                callback()

    def advance(self, ms):
        end = self.us + ms * 1000
        self.turn()
        while self.timers and self.timers[0][0] <= end:
            self.us = max(self.us, self.timers[0][0])
            self.turn()
        self.us = end


class FakePartition:
    """A log of batches. With ``hold`` appends become durable only when ``persist`` is called."""

    def __init__(self, index, batches=(), name=OFFSETS_TOPIC):
        self.name = name
        self.index = index
        self.batches = list(batches)
        self.waiting = []
        self.hold = False
        self.refuse = None
        self.log_start_offset = 0
        self.high_watermark = self.end_offset()
        self.reads = []
        self.read_error = None
        self.defer = None
        self.transactions = PartitionTransactions()

    def on_transaction_ended(self, callback):
        self.ended = callback

    def accepts(self, producer_id, producer_epoch):
        return self.transactions.accepts(producer_id, producer_epoch)

    def ask_verification(self, producer_id, producer_epoch):
        return self.transactions.ask_verification(producer_id, producer_epoch)

    def verified(self, producer_id, producer_epoch, question):
        return self.transactions.verified(producer_id, producer_epoch, question)

    def end_offset(self):
        if not self.batches:
            return 0
        header = parse_header(self.batches[-1])
        return header.base_offset + header.last_offset_delta + 1

    def append(self, batch, done):
        if self.refuse is not None:
            done(self.refuse)
            return
        end = self.waiting[-1][1] if self.waiting else self.end_offset()
        header = parse_header(batch)
        if header.is_transactional and not header.is_control:
            if not self.transactions.accepts(header.producer_id, header.producer_epoch):
                done(Rejected("the transaction has ended", ErrorCode.INVALID_TXN_STATE))
                return
            self.transactions.began(header.producer_id, end)
        stored = bytearray(batch)
        stored[0:8] = end.to_bytes(8, "big")
        self.waiting.append((bytes(stored), end + parse_header(batch).last_offset_delta + 1, done))
        if not self.hold:
            self.persist()

    def end_transaction(self, producer_id, epoch, commits):
        """Append a marker, which is durable at once."""
        kind = COMMIT if commits else ABORT
        marker = build_batch(
            [control_record(kind, 0, 1)],
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional=True,
            control=True,
        )
        self.append(marker, lambda offset: None)
        self.transactions.ended(producer_id, self.end_offset() - 1, aborted=not commits)
        self.ended(producer_id, commits)

    def persist(self):
        waiting, self.waiting = self.waiting, []
        for batch, end, done in waiting:
            self.batches.append(batch)
            self.high_watermark = end
            done(parse_header(batch).base_offset)

    def read(self, offset, max_bytes, done):
        self.reads.append(offset)
        if self.read_error is not None:
            error, self.read_error = self.read_error, None
            done(error)
            return
        found, size = [], 0
        for batch in self.batches:
            header = parse_header(batch)
            if header.base_offset + header.last_offset_delta >= offset and (
                not found or size + len(batch) <= max_bytes
            ):
                found.append(batch)
                size += len(batch)
        answer = [b"".join(found)] if found else []
        if self.defer is None:
            done(answer)
        else:
            self.defer.append(lambda: done(answer))

    def records(self):
        return [record for chunk in self.batches for batch in iter_batches(chunk) for record in iter_records(batch)]


class FakeMailbox:
    """Calls between shards of one process; bytes are bytes. ``cut`` names shards that do not answer."""

    def __init__(self, shard_id, reactor, boxes):
        self.shard_id = shard_id
        self.reactor = reactor
        self.boxes = boxes
        self.handlers = {}
        self.cut = set()
        self.calls = 0

    def serve(self, method, handler):
        assert 60 <= method <= 79
        assert method not in self.handlers
        self.handlers[method] = handler

    def call(self, to, method, payload, on_reply, timeout_us, loans=()):
        assert isinstance(payload, bytes)
        assert timeout_us > 0
        self.calls += 1
        if to in self.cut:
            self.reactor.call_soon(on_reply, Retriable("too many calls"))
            return
        state = {"open": True}

        def answer(result):
            assert state["open"], "answered twice"
            state["open"] = False
            assert isinstance(result, bytes | MillstreamError)
            self.reactor.call_soon(on_reply, result)

        reply = SimpleNamespace(send=answer, fail=answer, wanted=True, on_cancel=None)
        self.reactor.call_soon(self.boxes[to].handlers[method], self.shard_id, payload, reply)


class FakeMetadata:
    def __init__(self, settings):
        self.start_settings = self.settings = settings
        self.node_id = settings.node_id
        self.state = ControllerState()
        self.topics = {}
        self.listeners = []
        self.group_configs = {}
        self.revision = 0

    def other_replica(self, part, turn):
        return None

    def leader_of(self, part):
        return part.leader

    def partition(self, name, index):
        topic = self.topics.get(name)
        return None if topic is None else topic.partitions[index]

    def names(self):
        return tuple(self.topics)

    def add(self, name, topic_id, homes):
        leader = self.node_id
        partitions = tuple(
            SimpleNamespace(index=i, home_shard=home, leader=leader, leader_epoch=0) for i, home in enumerate(homes)
        )
        self.revision += 1
        known = name in self.topics
        topic = self.topics[name] = SimpleNamespace(
            name=name, topic_id=topic_id, partitions=partitions, configs={}, lost=False
        )
        for listener in () if known else self.listeners:
            listener.topic_created(topic)

    def topic(self, name):
        return self.topics.get(name)

    def topic_by_id(self, topic_id):
        return next((t for t in self.topics.values() if t.topic_id == topic_id), None)

    def subscribe(self, listener):
        assert isinstance(listener, MetadataListener)
        self.listeners.append(listener)

    def delete(self, name):
        topic = self.topics.pop(name)
        self.revision += 1
        for listener in self.listeners:
            for _ in listener.topic_deleted(topic) or ():
                pass


class FakeTable:
    def __init__(self):
        self.opened = []
        self.closed = []

    def on_open(self, callback):
        self.opened.append(callback)

    def on_close(self, callback):
        self.closed.append(callback)


class Broker:
    """Shards with routers, and the partitions of ``__consumer_offsets`` spread over them."""

    def __init__(self, shards=1, partitions=4, logs=None, **settings):
        self.settings = Settings(**{"group_initial_rebalance_delay_ms": 0, "data_dir": "/nowhere", **settings})
        self.count = partitions
        self.reactor = FakeReactor()
        self.metadata = FakeMetadata(self.settings)
        self.partitions = {}
        self.tables = [FakeTable() for _ in range(shards)]
        boxes = []
        boxes += [FakeMailbox(i, self.reactor, boxes) for i in range(shards)]
        self.mailboxes = boxes
        self.creations = 0
        self.fail_creation = False
        self.routers = []
        self.coordinators = []
        for i in range(shards):
            stats = StatsSlab(i, "shard")
            shard = SimpleNamespace(id=i, count=shards, reactor=self.reactor, mailbox=boxes[i], stats=stats)
            self.routers.append(GroupRouter(shard, self.settings, self.metadata, self, self.tables[i]))
            self.routers[-1].stats = stats
            local = self.routers[-1].local
            self.coordinators.append(Coordinators(shard, self.metadata))
            self.coordinators[-1].add(OFFSETS_TOPIC, local.partitions, local.loads)
        if logs is not None:
            self.open(logs)

    def ensure_topic(self, name, done):
        """The controller client's part."""
        assert name == OFFSETS_TOPIC
        if self.fail_creation:
            done(Rejected("no"))
            return
        if self.metadata.topic(name) is None:
            self.creations += 1
            self.open()
        done(self.metadata.topic(name))

    def open(self, logs=None, run=True):
        homes = [index % len(self.routers) for index in range(self.count)]
        self.metadata.add(OFFSETS_TOPIC, b"o" * 16, homes)
        for index, home in enumerate(homes):
            partition = self.partitions[index] = FakePartition(index, (logs or {}).get(index, ()))
            for callback in self.tables[home].opened:
                callback(partition)
        if run:
            self.reactor.turn()

    def logs(self):
        return {index: list(partition.batches) for index, partition in self.partitions.items()}

    def restart(self, **options):
        broker = Broker(len(self.routers), self.count, self.logs(), **options)
        broker.metadata.topics.update(self.metadata.topics)
        return broker


def batch_of(*records, base_offset=0):
    """A batch with these (key, value) pairs."""
    return build_batch([(k, v, (), 1) for k, v in records], base_offset=base_offset)


class Context:
    """A request's context."""

    def __init__(self, version, respond, client_id="cli", host="10.1.2.3"):
        self.api_version = version
        self.respond = respond
        self.client_id = client_id
        self.host = host
        self.principal = "User:ANONYMOUS"
        self.local_host = "10.9.9.9"
        self.listener = "PLAINTEXT"
        self.local_port = 9092
        self.connection = SimpleNamespace(client=SimpleNamespace(leaderless=0))


class Answers(list):
    """Takes answers and checks that each can be sent in the version."""

    def __init__(self, version):
        super().__init__()
        self.version = version

    def __call__(self, message):
        from millstream.wire.codec import decode_response, encode_response

        data = encode_response(message, self.version)
        again = decode_response(type(message).API_KEY, self.version, data, 0, len(data))
        assert isinstance(again, msgspec.Struct)
        self.append(again)


def call(broker, module, request, version, shard=0, **context):
    """Call a handler; returns the list that its answer goes into (decoded from its bytes)."""
    node = SimpleNamespace(
        coordinator=broker.routers[shard],
        coordinators=broker.coordinators[shard],
        metadata=broker.metadata,
        settings=broker.settings,
    )
    answers = Answers(version)
    module.handle(node, Context(version, answers, **context), request)
    broker.reactor.turn()
    return answers
