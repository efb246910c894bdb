"""Replicas move between the brokers of a cluster while clients produce: nothing is lost, and old files go."""

import pytest
from cluster_support import QUIET, Unordered, all_in_sync, create, read
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from moving_support import Load, ask, move, moving, replicas_of
from repairs_support import metric

from millstream.core.controller.commands import FEATURE_LEVEL
from millstream.model.error_code import ErrorCode
from millstream.testing import cluster
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from millstream.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from waits import until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def three():
    with cluster(3) as made:
        yield made


@pytest.mark.slow
@pytest.mark.ci
def test_partitions_move_under_load_and_nothing_is_lost_or_doubled(three):
    create(three.brokers[1], "moved", 3, 1)
    with Load(three.bootstrap, "moved", 3) as load:
        until(lambda: len(load.acked) > 100)
        grown = {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]}
        assert move(three.brokers[2], "moved", grown) == [(0, None)] * 3
        until(lambda: not moving(three.brokers[1]) and all_in_sync(three, "moved"))
        before = len(load.acked)
        until(lambda: len(load.acked) > before + 100)
        shrunk = {0: [2], 1: [3], 2: [1, 2]}
        assert move(three.brokers[3], "moved", shrunk) == [(0, None)] * 3
        until(lambda: not moving(three.brokers[3]))
        until(lambda: replicas_of(three.brokers[1], "moved") == [[2], [3], [1, 2]])
        before = len(load.acked)
        until(lambda: len(load.acked) > before + 100)
        for node in three.brokers:
            three.kill(node)
            three.restart(node)
        before = len(load.acked)
        until(lambda: len(load.acked) > before + 100)
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
        done.result(60)


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
    until(lambda: put_off(three) > before)
    assert moving(three.brokers[1]), "8 MiB at 1000 bytes a second"
    throttle(three, "slow", None)
    until(lambda: not moving(three.brokers[1]))
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
