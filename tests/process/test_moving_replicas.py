"""Replicas move between the brokers of a cluster while clients produce: nothing is lost, and old files go."""

import threading
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from test_cluster import QUIET, Unordered, all_in_sync, create, partitions, read, wait_for
from test_cluster_repairs import metric

from millstream.client.connection import Connection
from millstream.core.controller.commands import FEATURE_LEVEL
from millstream.model.error_code import ErrorCode
from millstream.testing import cluster
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from millstream.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

DEADLINE_S = 60


@pytest.fixture(scope="module")
def three():
    with cluster(3) as made:
        yield made


def ask(broker, request, answer, version=0):
    host, _, port = broker.bootstrap.rpartition(":")
    with Connection(host, int(port)) as connection:
        return connection.call(request, answer, version)


def move(broker, topic, replicas, *, version=1, factor=True):
    """Ask for the replicas of partitions; returns the error and message of each."""
    parts = [ReassignablePartition(partition_index=index, replicas=nodes) for index, nodes in replicas.items()]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=parts)], allow_replication_factor_change=factor
    )
    answer = ask(broker, request, AlterPartitionReassignmentsResponse, version)
    return [(part.error_code, part.error_message) for part in answer.responses[0].partitions]


def moving(broker):
    answer = ask(broker, ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse)
    return {
        (topic.name, part.partition_index): (part.replicas, part.adding_replicas, part.removing_replicas)
        for topic in answer.topics
        for part in topic.partitions
    }


def replicas_of(broker, topic):
    return [list(part.replicas) for part in partitions(broker, topic)]


class Load:
    """An idempotent producer that goes on until the block ends."""

    def __init__(self, bootstrap, topic, count):
        self.acked, self.failed = [], []
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1} | QUIET)
        self._topic, self._count = topic, count
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._producer.flush(60)

    def _produce(self):
        number = 0
        while not self._stop.is_set():
            self._producer.produce(
                self._topic, b"%d" % number, partition=number % self._count, on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1
            time.sleep(0.002)

    def _delivered(self, error, message):
        (self.acked if error is None else self.failed).append(message.value())


@pytest.mark.slow
@pytest.mark.ci
def test_partitions_move_under_load_and_nothing_is_lost_or_doubled(three):
    create(three.brokers[1], "moved", 3, 1)
    with Load(three.bootstrap, "moved", 3) as load:
        wait_for(lambda: len(load.acked) > 100, DEADLINE_S)
        grown = {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]}
        assert move(three.brokers[2], "moved", grown) == [(0, None)] * 3
        wait_for(lambda: not moving(three.brokers[1]) and all_in_sync(three, "moved"), DEADLINE_S)
        before = len(load.acked)
        wait_for(lambda: len(load.acked) > before + 100, DEADLINE_S)
        shrunk = {0: [2], 1: [3], 2: [1, 2]}
        assert move(three.brokers[3], "moved", shrunk) == [(0, None)] * 3
        wait_for(lambda: not moving(three.brokers[3]), DEADLINE_S)
        wait_for(lambda: replicas_of(three.brokers[1], "moved") == [[2], [3], [1, 2]], DEADLINE_S)
        before = len(load.acked)
        wait_for(lambda: len(load.acked) > before + 100, DEADLINE_S)
        for node in three.brokers:
            three.kill(node)
            three.restart(node)
        before = len(load.acked)
        wait_for(lambda: len(load.acked) > before + 100, DEADLINE_S)
    assert not load.failed
    assert read(three.bootstrap, "moved", 3, len(load.acked)) == Unordered(load.acked)


RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def throttle(three, topic, bytes_per_s):
    """Limit the transfers of a topic, as ``kafka-reassign-partitions --throttle`` does; None takes the limit away."""
    operation = AlterConfigOpType.DELETE if bytes_per_s is None else AlterConfigOpType.SET
    rates = [ConfigEntry(name, bytes_per_s, incremental_operation=operation) for name in RATES]
    replicas = [ConfigEntry(name, bytes_per_s and "*", incremental_operation=operation) for name in REPLICAS]
    resources = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=replicas)]
    resources += [ConfigResource(ResourceType.BROKER, str(node), incremental_configs=rates) for node in three.brokers]
    admin = AdminClient({"bootstrap.servers": three.bootstrap} | QUIET)
    for resource in resources:
        (done,) = admin.incremental_alter_configs([resource]).values()
        done.result(30)


def put_off(three):
    """How many transfers all brokers have put off because of a throttle."""
    return sum(metric(broker, "millstream_replica_throttled") for broker in three.brokers.values())


@pytest.mark.slow
@pytest.mark.ci
def test_a_throttled_move_waits_and_ends_when_the_throttle_is_taken_away(three):
    create(three.brokers[1], "slow", 1, 1)
    (home,) = replicas_of(three.brokers[1], "slow")[0]
    producer = Producer({"bootstrap.servers": three.bootstrap} | QUIET)
    for _ in range(64):
        producer.produce("slow", bytes(128 << 10), partition=0)
    assert producer.flush(60) == 0
    throttle(three, "slow", "1000")
    before = put_off(three)
    target = home % 3 + 1
    assert move(three.brokers[2], "slow", {0: [target]}) == [(0, None)]
    wait_for(lambda: put_off(three) > before, DEADLINE_S)
    assert moving(three.brokers[1]), "8 MiB at 1000 bytes a second"
    throttle(three, "slow", None)
    wait_for(lambda: not moving(three.brokers[1]), DEADLINE_S)
    assert replicas_of(three.brokers[1], "slow") == [[target]]
    assert len(read(three.bootstrap, "slow", 1, 64)) == 64


@pytest.mark.slow
@pytest.mark.ci
def test_any_broker_takes_levels_of_features_and_keeps_brokers_that_hold_replicas(three):
    create(three.brokers[1], "held", 1, 3)
    for broker in three.brokers.values():
        level = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey("millstream.version", FEATURE_LEVEL)])
        assert ask(broker, level, UpdateFeaturesResponse, 2).error_code == 0
        lower = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey("millstream.version", 1)])
        refused = ask(broker, lower, UpdateFeaturesResponse, 2)
        assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "Can't downgrade the version of this feature" in refused.error_message
        kept = ask(broker, UnregisterBrokerRequest(2), UnregisterBrokerResponse)
        assert kept.error_code == ErrorCode.INVALID_REQUEST and "cluster decommission 2" in kept.error_message
        unknown = ask(broker, UnregisterBrokerRequest(9), UnregisterBrokerResponse)
        assert unknown.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        versions = ask(broker, ApiVersionsRequest("c", "1"), ApiVersionsResponse, 4)
        assert ("millstream.version", FEATURE_LEVEL) in [
            (one.name, one.max_version_level) for one in versions.finalized_features
        ]
