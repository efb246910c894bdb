"""A broker that is a dictionary, behind the calls that the command line makes of its clients.

Only the edge is faked: results and errors are the clients' own classes where they let them be made.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from millstream.client import EARLIEST, LATEST
from millstream.client.transactional import MarkedOffset
from millstream.wire.records import Record

NODE = SimpleNamespace(id=1, host="127.0.0.1", port=9092)


@dataclass
class FakeMessage:
    topic_name: str
    partition_number: int
    offset_number: int
    value_bytes: bytes | None = None
    key_bytes: bytes | None = None
    header_list: list = field(default_factory=list)
    timestamp_ms: int = 1_700_000_000_000
    failure: KafkaError | None = None

    def topic(self):
        return self.topic_name

    def partition(self):
        return self.partition_number

    def offset(self):
        return self.offset_number

    def value(self):
        return self.value_bytes

    def key(self):
        return self.key_bytes

    def headers(self):
        return self.header_list or None

    def timestamp(self):
        return (1, self.timestamp_ms)

    def error(self):
        return self.failure


@dataclass
class FakeGroup:
    state: str = "EMPTY"
    committed: dict = field(default_factory=dict)
    members: list = field(default_factory=list)


class FakeCluster:
    """Topics are lists of partitions of messages."""

    def __init__(self):
        self.topics: dict[str, list[list[FakeMessage]]] = {}
        self.config: dict[str, dict[str, str]] = {}
        self.groups: dict[str, FakeGroup] = {}
        self.refuse_value: bytes | None = None
        self.damaged: set[str] = set()
        self.leaderless: set[str] = set()
        self.short: set[str] = set()
        self.configurations: list[dict] = []

    def fill(self, topic, *values):
        partition = self.topics.setdefault(topic, [[]])[0]
        for value in values:
            partition.append(FakeMessage(topic, 0, len(partition), value))

    def committed_offsets(self, _coordinators, group, *, stable):
        """Instead of ``millstream.client.transactional.committed_offsets``."""
        committed = self.groups.get(group, FakeGroup()).committed
        return {place: MarkedOffset(offset) for place, offset in committed.items()}


def done(result):
    future = Future()
    future.set_result(result)
    return future


def failed(code, text=""):
    future = Future()
    future.set_exception(KafkaException(KafkaError(code, text)))
    return future


class FakeAdmin:
    def __init__(self, cluster, configuration):
        self.cluster = cluster
        cluster.configurations.append(configuration)

    def create_topics(self, wanted, **_):
        return {topic.topic: self._create(topic) for topic in wanted}

    def _create(self, topic):
        if topic.topic in self.cluster.topics:
            return failed(KafkaError.TOPIC_ALREADY_EXISTS)
        if "segment.bytes" in topic.config and not topic.config["segment.bytes"].isdigit():
            return failed(KafkaError.INVALID_CONFIG, "segment.bytes is not a number")
        self.cluster.topics[topic.topic] = [[] for _ in range(max(topic.num_partitions, 1))]
        self.cluster.config[topic.topic] = dict(topic.config)
        return done(None)

    def delete_topics(self, names, **_):
        return {
            name: done(self.cluster.topics.pop(name) and None)
            if name in self.cluster.topics
            else failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
            for name in names
        }

    def list_topics(self, timeout):
        topics = {
            name: SimpleNamespace(
                topic=name,
                partitions={i: self._listed(name, i) for i in range(len(partitions))},
            )
            for name, partitions in self.cluster.topics.items()
        }
        return SimpleNamespace(topics=topics, brokers={1: NODE}, orig_broker_id=1)

    def _listed(self, name, number):
        leaderless, short = f"{name}/{number}" in self.cluster.leaderless, f"{name}/{number}" in self.cluster.short
        return SimpleNamespace(leader=-1 if leaderless else 1, replicas=[1], isrs=[] if short else [1])

    def describe_cluster(self, **_):
        node = SimpleNamespace(id=1, host="127.0.0.1", port=9092, rack="r1")
        return done(SimpleNamespace(cluster_id="c", controller=node, nodes=[node]))

    def describe_topics(self, collection, **_):
        return {name: self._describe(name) for name in collection.topic_names}

    def _describe(self, name):
        if name not in self.cluster.topics:
            return failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
        partitions = [
            SimpleNamespace(id=i, leader=NODE, replicas=[NODE], isr=[NODE])
            for i in range(len(self.cluster.topics[name]))
        ]
        return done(SimpleNamespace(topic_id="an-id", is_internal=False, partitions=partitions))

    def describe_configs(self, resources, **_):
        entries = {
            name: SimpleNamespace(name=name, value=value, source=1)
            for name, value in self.cluster.config.get(resources[0].name, {}).items()
        }
        entries["retention.bytes"] = SimpleNamespace(name="retention.bytes", value="-1", source=5)
        return {resources[0]: done(entries)}

    def incremental_alter_configs(self, resources, **_):
        name = resources[0].name
        if name not in self.cluster.topics:
            return {resources[0]: failed(KafkaError.UNKNOWN_TOPIC_OR_PART)}
        for entry in resources[0].incremental_configs:
            if entry.value is None:
                self.cluster.config[name].pop(entry.name, None)
            else:
                self.cluster.config[name][entry.name] = entry.value
        return {resources[0]: done(None)}

    def create_partitions(self, wanted, **_):
        topic = wanted[0]
        partitions = self.cluster.topics[topic.topic]
        if topic.new_total_count <= len(partitions):
            return {
                topic.topic: failed(KafkaError.INVALID_PARTITIONS, f"Topic already has {len(partitions)} partitions.")
            }
        partitions += [[] for _ in range(topic.new_total_count - len(partitions))]
        return {topic.topic: done(None)}

    def list_offsets(self, specs, **_):
        return {
            key: failed(KafkaError.KAFKA_STORAGE_ERROR)
            if key.topic in self.cluster.damaged
            else done(SimpleNamespace(offset=self._offset(key, spec), leader_epoch=4))
            for key, spec in specs.items()
        }

    def _offset(self, key, spec):
        messages = self.cluster.topics[key.topic][key.partition]
        if type(spec).__name__ == "EarliestSpec":
            return 0
        if type(spec).__name__ == "LatestSpec":
            return len(messages)
        return next((m.offset_number for m in messages if m.timestamp_ms >= spec.timestamp), -1)

    def list_consumer_groups(self, states=(), types=(), **_):
        valid = [
            SimpleNamespace(
                group_id=name,
                state=SimpleNamespace(name=group.state),
                is_simple_consumer_group=False,
                type=SimpleNamespace(name="CLASSIC"),
            )
            for name, group in self.cluster.groups.items()
            if (not states or group.state in {state.name for state in states})
            and (not types or "CLASSIC" in {kind.name for kind in types})
        ]
        return done(SimpleNamespace(valid=valid, errors=[]))

    def delete_consumer_groups(self, names, **_):
        return {name: self._delete_group(name) for name in names}

    def _delete_group(self, name):
        group = self.cluster.groups.get(name)
        if group is None:
            return failed(KafkaError.GROUP_ID_NOT_FOUND)
        if group.members:
            return failed(KafkaError.NON_EMPTY_GROUP)
        del self.cluster.groups[name]
        return done(None)

    def describe_consumer_groups(self, names, **_):
        group = self.cluster.groups.get(names[0], FakeGroup("DEAD"))
        description = SimpleNamespace(
            group_id=names[0],
            state=SimpleNamespace(name=group.state),
            members=group.members,
            coordinator=NODE,
            partition_assignor="range",
            is_simple_consumer_group=False,
            type=SimpleNamespace(name="CLASSIC"),
        )
        return {names[0]: done(description)}

    def alter_consumer_group_offsets(self, requests, **_):
        request = requests[0]
        group = self.cluster.groups.setdefault(request.group_id, FakeGroup())
        for entry in request.topic_partitions:
            group.committed[entry.topic, entry.partition] = entry.offset
        return {request.group_id: done(SimpleNamespace(topic_partitions=request.topic_partitions))}


class FakeProducer:
    def __init__(self, cluster, configuration):
        self.cluster = cluster
        self.waiting = []
        self.full_once = True
        cluster.configurations.append(configuration)

    def produce(self, topic, value, key, headers, partition, timestamp, on_delivery):
        if self.full_once:
            self.full_once = False
            raise BufferError
        partitions = self.cluster.topics.setdefault(topic, [[]])
        log = partitions[max(partition, 0)]
        message = FakeMessage(
            topic, max(partition, 0), len(log), value, key, headers or [], timestamp or 1_700_000_000_000
        )
        if value is not None and value == self.cluster.refuse_value:
            self.waiting.append((on_delivery, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), message))
        else:
            log.append(message)
            self.waiting.append((on_delivery, None, message))

    def poll(self, timeout):
        waiting, self.waiting = self.waiting, []
        for on_delivery, error, message in waiting:
            on_delivery(error, message)
        return len(waiting)

    def flush(self, timeout):
        self.poll(timeout)
        return 0


class FakeConsumer:
    """Gives every message once, then the end of each partition, then a Ctrl-C."""

    def __init__(self, cluster, configuration):
        self.cluster = cluster
        self.configuration = configuration
        self.topic_partitions: list[TopicPartition] = []
        self.stored = {}
        self.ended = set()
        cluster.configurations.append(configuration)

    def assign(self, topic_partitions):
        self.topic_partitions = topic_partitions

    def subscribe(self, topics):
        group = self.cluster.groups.setdefault(self.configuration["group.id"], FakeGroup())
        for topic in topics:
            for number in range(len(self.cluster.topics[topic])):
                self.topic_partitions.append(TopicPartition(topic, number, group.committed.get((topic, number), 0)))

    def assignment(self):
        return self.topic_partitions

    def consume(self, limit, timeout):
        for place in self.topic_partitions:
            messages = self.cluster.topics[place.topic][place.partition]
            start = len(messages) if place.offset == -1 else max(place.offset, 0)
            found = messages[start : start + limit]
            place.offset = start + len(found)
            if found:
                return found
            if place.partition not in self.ended:
                self.ended.add(place.partition)
                end = KafkaError(KafkaError._PARTITION_EOF)
                return [FakeMessage(place.topic, place.partition, place.offset, failure=end)]
        raise KeyboardInterrupt

    def store_offsets(self, message):
        self.stored[message.topic(), message.partition()] = message.offset() + 1

    def commit(self, asynchronous):
        self.cluster.groups[self.configuration["group.id"]].committed.update(self.stored)

    def close(self):
        self.topic_partitions = []


class FakeReader:
    """A ``RecordReader``: gives every record once, then a round without any, then a Ctrl-C."""

    def __init__(self, cluster, client, starts, *, read_committed):
        self.cluster = cluster
        self.positions = dict(starts)
        self.at_end = set()
        self.failure = None
        self.rounds_at_end = 0
        isolation = "read_committed" if read_committed else "read_uncommitted"
        cluster.configurations.append({"isolation.level": isolation, "enable.auto.commit": False})

    def read_round(self):
        for (topic, partition), position in list(self.positions.items()):
            messages = self.cluster.topics[topic][partition]
            start = {EARLIEST: 0, LATEST: len(messages)}.get(position, position)
            for message in messages[start:]:
                headers = tuple(message.header_list)
                yield (
                    (topic, partition),
                    Record(
                        message.offset_number, message.timestamp_ms, message.key_bytes, message.value_bytes, headers
                    ),
                )
            self.positions[topic, partition] = len(messages)
            self.at_end.add((topic, partition))
        self.rounds_at_end += 1
        if self.rounds_at_end > 2:
            raise KeyboardInterrupt

    def close(self):
        self.positions = {}
