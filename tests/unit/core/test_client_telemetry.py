"""Who shall push which metrics, and when: decisions without a clock."""

import itertools
import time

import pytest

from millstream.core import client_telemetry
from millstream.core.client_telemetry import NO_INSTANCE, ClientTelemetry
from millstream.model.error_code import ErrorCode

CLIENT = {"client_id": "app-1", "client_software_name": "librdkafka", "client_software_version": "2.8"}
IDS = (bytes([number]) * 16 for number in itertools.count(2))


def telemetry(*subscriptions, max_bytes=1000):
    made = ClientTelemetry(lambda: next(IDS), max_bytes)
    made.subscribe(subscriptions)
    return made


def get(made, now_ms, instance=NO_INSTANCE, client=CLIENT):
    error, instance, wanted = made.get(now_ms, instance, client)
    return error.name, instance, wanted


def push(made, now_ms, instance, subscription, compression=0, size=10, terminating=False):
    return made.push(now_ms, instance, CLIENT, subscription, compression, size, terminating=terminating).name


def test_a_client_gets_an_id_and_what_the_subscriptions_that_mean_it_want():
    made = telemetry(
        {"metrics": "b.,a.", "interval.ms": "2000", "match": "client_id=app-.*"},
        {
            "metrics": "a.,c.",
            "interval.ms": "1000",
            "match": "client_software_name=librdkafka,client_software_version=2.*",
        },
        {"metrics": "d.", "interval.ms": "100", "match": "client_id=app"},
    )
    error, instance, wanted = get(made, 0)
    assert (error, wanted.metrics, wanted.interval_ms) == ("NONE", ("a.", "b.", "c."), 1000)
    assert instance != NO_INSTANCE
    assert -(2**31) <= wanted.subscription_id < 2**31


def test_nobody_is_asked_for_anything_without_a_subscription():
    _, _, wanted = get(telemetry(), 0)
    assert (wanted.metrics, wanted.interval_ms) == ((), 300_000)


def test_one_subscription_to_everything_is_everything():
    _, _, wanted = get(telemetry({"metrics": "a."}, {"metrics": "*,b."}), 0)
    assert wanted.metrics == ("*",)


def test_the_subscription_id_is_the_same_wherever_the_client_asks():
    configs = {"metrics": "a.", "interval.ms": "1000"}
    _, instance, wanted = get(telemetry(configs), 0)
    assert get(telemetry(configs), 0, instance)[2] == wanted
    assert get(telemetry(configs), 0)[2].subscription_id != wanted.subscription_id
    assert push(telemetry(configs), 0, instance, wanted.subscription_id) == "NONE"


def test_clients_are_held_to_the_interval():
    made = telemetry({"metrics": "a.", "interval.ms": "1000"})
    _, instance, wanted = get(made, 0)
    assert get(made, 999, instance)[0] == "THROTTLING_QUOTA_EXCEEDED"
    assert push(made, 10, instance, wanted.subscription_id) == "NONE"
    assert push(made, 500, instance, wanted.subscription_id) == "THROTTLING_QUOTA_EXCEEDED"
    assert push(made, 1010, instance, wanted.subscription_id) == "NONE"
    assert get(made, 2010, instance)[0] == "NONE"


def test_a_change_of_subscriptions_is_told_with_the_next_push():
    made = telemetry({"metrics": "a.", "interval.ms": "1000"})
    _, instance, wanted = get(made, 0)
    made.subscribe([{"metrics": "b.", "interval.ms": "1000"}])
    assert push(made, 5, instance, wanted.subscription_id) == "UNKNOWN_SUBSCRIPTION_ID"
    error, again, new = get(made, 6, instance)
    assert (error, again, new.metrics) == ("NONE", instance, ("b.",))
    assert new.subscription_id != wanted.subscription_id
    assert push(made, 1006, instance, new.subscription_id) == "NONE"


@pytest.mark.parametrize(
    ("options", "error", "asks_again"),
    [
        ({"compression": 9}, "UNSUPPORTED_COMPRESSION_TYPE", "NONE"),
        ({"size": 1001}, "TELEMETRY_TOO_LARGE", "THROTTLING_QUOTA_EXCEEDED"),
        ({"compression": 4, "size": 1000}, "NONE", "THROTTLING_QUOTA_EXCEEDED"),
        ({"size": 0}, "NONE", "THROTTLING_QUOTA_EXCEEDED"),
    ],
)
def test_what_a_push_may_be(options, error, asks_again):
    made = telemetry({"metrics": "a."})
    _, instance, wanted = get(made, 0)
    assert push(made, 1, instance, wanted.subscription_id, **options) == error
    assert get(made, 2, instance)[0] == asks_again


def test_last_words_are_taken_at_any_time_and_are_the_last():
    made = telemetry({"metrics": "a."})
    _, instance, wanted = get(made, 0)
    assert push(made, 1, instance, wanted.subscription_id) == "NONE"
    assert push(made, 2, instance, wanted.subscription_id, terminating=True) == "NONE"
    assert push(made, 900_000, instance, wanted.subscription_id) == "INVALID_REQUEST"


def test_an_id_that_nobody_can_have_pushes_nothing():
    made = telemetry({"metrics": "a."})
    assert push(made, 0, NO_INSTANCE, 1) == "INVALID_REQUEST"
    assert push(made, 0, bytes(15) + b"\1", 1) == "INVALID_REQUEST"


def test_memory_is_bounded_and_the_quietest_client_is_forgotten(monkeypatch):
    monkeypatch.setattr(client_telemetry, "INSTANCES_MAX", 3)
    made = telemetry({"metrics": "a.", "interval.ms": "1000"})
    clients = [get(made, 0)[1] for _ in range(3)]
    assert get(made, 1, clients[0])[0] == "THROTTLING_QUOTA_EXCEEDED"
    get(made, 2)
    assert get(made, 3, clients[0])[0] == "THROTTLING_QUOTA_EXCEEDED"
    assert get(made, 3, clients[1])[0] == ErrorCode.NONE.name


def test_a_client_may_be_meant_by_its_id_as_kafka_writes_it():
    made = telemetry({"metrics": "a.", "match": "client_instance_id=AgICAgICAgICAgICAgICAg"})
    assert get(made, 0, bytes([2]) * 16)[2].metrics == ("a.",)
    assert get(made, 0, bytes([3]) * 16)[2].metrics == ()


def test_an_expression_cannot_hold_the_shard_up_whatever_a_client_calls_itself():
    made = telemetry({"metrics": "a.", "match": "client_id=(a+)+b"})
    began = time.thread_time()
    assert get(made, 0, client={"client_id": "a" * 5_000})[2].metrics == ()
    assert time.thread_time() - began < 1
    assert get(made, 0, client={"client_id": "a" * 5_000 + "b"})[2].metrics == ("a.",)
