"""Levels of features: what may be asked for, and that none falls."""

import msgspec
import pytest
from controller_bench import Bench

from millstream.config.settings import Settings
from millstream.core.controller.commands import FeatureLevelRaised
from millstream.core.controller.features import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, UPGRADE
from millstream.core.controller.requests import (
    AlterConfigs,
    AlterGroup,
    ConfigChange,
    UpdateFeatures,
    decode_request,
    encode_request,
)

OURS = "millstream.version"


def asked(bench, *updates, validate_only=False):
    request = decode_request(encode_request(UpdateFeatures(updates, validate_only)))
    decision = bench.decide(request)
    (result,) = decision.results
    return (result.error.name, result.message), list(decision.commands)


@pytest.mark.parametrize(
    ("name", "level", "kind", "why"),
    [
        ("metadata.version", 1, UPGRADE, "Local controller 1 does not support this feature."),
        ("group.version", 2, UPGRADE, "Local controller 1 only supports versions 0-1"),
        ("group.version", -1, UPGRADE, "A feature version cannot be less than 0."),
        ("group.version", 0, UPGRADE, "Can't downgrade the version of this feature without"),
        ("group.version", 0, SAFE_DOWNGRADE, "It is at level 1, and no level is lowered here."),
        ("transaction.version", 1, UNSAFE_DOWNGRADE, "It is at level 2, and no level is lowered here."),
        ("group.version", 1, 0, "The controller does not support the given upgrade type."),
        (OURS, 11, UPGRADE, "Local controller 1 only supports versions 1-10"),
        ("streams.version", 1, UPGRADE, "It rises with millstream.version, when all brokers run this release."),
        ("share.version", 1, UPGRADE, "It rises with millstream.version, when all brokers run this release."),
        (OURS, 2, SAFE_DOWNGRADE, "Can't downgrade to a newer version."),
        (OURS, 2, UPGRADE, "Broker 1 runs release 0.1.0 and only supports versions up to 1"),
    ],
)
def test_a_level_that_cannot_be_is_refused_and_changes_nothing(name, level, kind, why):
    bench = Bench(brokers=(1, 2))
    (error, message), commands = asked(bench, ("transaction.version", 2, UPGRADE), (name, level, kind))
    assert (error, commands) == ("INVALID_UPDATE_VERSION", [])
    assert message.startswith(f"Invalid update version {level} for feature {name}. {why}")


def test_features_of_kafka_alone_are_refused_with_the_reason():
    said = asked(Bench(brokers=(1, 2)), ("metadata.version", 30, UPGRADE))[0][1]
    assert said.endswith("its level is millstream.version, which rises by itself.")


def test_a_level_that_a_setting_lowers_is_not_raised_by_a_client():
    bench = Bench(brokers=(1, 2))
    bench.rules = msgspec.structs.replace(bench.rules, settings=Settings(data_dir="d", transaction_version=1))
    assert asked(bench, ("transaction.version", 1, UPGRADE)) == (("NONE", None), [])
    (error, message), commands = asked(bench, ("transaction.version", 2, UPGRADE))
    assert (error, commands) == ("INVALID_UPDATE_VERSION", [])
    assert message.endswith("The setting transaction.version of each broker is 1: change it there.")


def test_the_level_in_force_may_be_asked_for():
    bench = Bench(brokers=(1, 2))
    assert asked(bench, ("group.version", 1, UPGRADE), (OURS, 1, SAFE_DOWNGRADE)) == (("NONE", None), [])


def test_the_level_of_the_cluster_rises_when_every_broker_knows_it():
    bench = Bench(brokers=(1, 2))
    bench.register(1, feature_level=2)
    assert bench.state.feature_level == 1
    (error, message), commands = asked(bench, (OURS, 2, UPGRADE))
    assert (error, commands) == ("INVALID_UPDATE_VERSION", [])
    assert "Broker 2 runs" in message
    registry = bench.state.registry
    newer = msgspec.structs.replace(registry.brokers[2].profile, feature_level=2)
    registry.brokers[2] = msgspec.structs.replace(registry.brokers[2], profile=newer)
    assert asked(bench, (OURS, 2, UPGRADE), validate_only=True) == (("NONE", None), [])
    assert asked(bench, (OURS, 2, UPGRADE)) == (("NONE", None), [FeatureLevelRaised(2)])


def test_a_single_broker_has_no_level_of_a_cluster():
    assert "a cluster" in asked(Bench(), (OURS, 1, UPGRADE))[0][1]


@pytest.mark.parametrize(
    ("level", "name", "value", "error"),
    [
        (7, "share.isolation.level", "read_committed", "UNSUPPORTED_VERSION"),
        (8, "share.isolation.level", "read_committed", "NONE"),
        (8, "streams.num.standby.replicas", "1", "UNSUPPORTED_VERSION"),
        (9, "streams.num.standby.replicas", "1", "NONE"),
    ],
)
def test_properties_of_newer_groups_wait_until_every_broker_knows_them(level, name, value, error):
    bench = Bench(brokers=(1, 2), level=level)
    wanted = AlterConfigs((AlterGroup("g", (ConfigChange(name, 0, value),)),))
    (result,) = bench.do(wanted)
    assert result.error.name == error
