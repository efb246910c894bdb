"""Clients that push metrics about themselves, and the topic where those arrive (KIP-714)."""

import base64

import pytest

from millstream.client.connection import Connection
from millstream.model.error_code import ErrorCode
from millstream.testing.process import Broker
from millstream.wire.messages import incremental_alter_configs as changing
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from millstream.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from millstream.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from millstream.wire.records import iter_batches, iter_records

pytestmark = pytest.mark.process

TOPIC = "telemetry"


def connected(broker):
    host, port = broker.bootstrap.rsplit(":", 1)
    connection = Connection(host, int(port))
    answer = connection.call(ApiVersionsRequest("test-client", "1.2"), ApiVersionsResponse, 3)
    return connection, {each.api_key for each in answer.api_keys}


def subscribe(connection, name, **configs):
    changes = [changing.AlterableConfig(key.replace("_", "."), 0, value) for key, value in configs.items()]
    request = changing.IncrementalAlterConfigsRequest([changing.AlterConfigsResource(16, name, changes)])
    answer = connection.call(request, changing.IncrementalAlterConfigsResponse, 1)
    assert answer.responses[0].error_code == 0, answer


def ask(connection, instance=bytes(16)):
    return connection.call(GetTelemetrySubscriptionsRequest(instance), GetTelemetrySubscriptionsResponse, 0)


def push(connection, instance, subscription, metrics, compression=0, terminating=False):
    request = PushTelemetryRequest(instance, subscription, terminating, compression, metrics)
    return ErrorCode(connection.call(request, PushTelemetryResponse, 0).error_code).name


def stored(connection):
    """Every record of the telemetry topic."""
    asked = [MetadataRequestTopic(name=TOPIC)]
    (topic,) = connection.call(MetadataRequest(asked, False), MetadataResponse, 12).topics
    parts = [FetchPartition(part.partition_index, partition_max_bytes=1 << 20) for part in topic.partitions]
    answer = connection.call(FetchRequest(topics=[FetchTopic(TOPIC, partitions=parts)]), FetchResponse, 11)
    views = [memoryview(bytes(part.records or b"")) for each in answer.responses for part in each.partitions]
    return [record for view in views for batch in iter_batches(view) for record in iter_records(batch)]


def test_what_clients_push_arrives_in_the_topic_with_who_pushed_it():
    settings = {"client.telemetry.topic": TOPIC, "num.partitions": 4}
    with Broker(shards=2, memory="128MiB", settings=settings) as broker:
        connection, served = connected(broker)
        assert {71, 72} <= served
        subscribe(connection, "s", metrics="org.apache.", interval_ms="100", match="client_software_name=test-.*")
        pushed = {}
        for number in range(6):
            answer = ask(connection)
            assert (answer.error_code, answer.requested_metrics, answer.push_interval_ms) == (0, ["org.apache."], 100)
            assert answer.telemetry_max_bytes <= 1 << 20
            payload = b"metrics %d" % number
            assert push(connection, answer.client_instance_id, answer.subscription_id, payload, 4) == "NONE"
            pushed[base64.urlsafe_b64encode(answer.client_instance_id).rstrip(b"=")] = payload
        records = stored(connection)
        assert {bytes(record.key): bytes(record.value) for record in records} == pushed
        headers = {name: bytes(value).decode() for name, value in records[0].headers}
        assert headers["client_software_name"] == "test-client"
        assert headers["client_software_version"] == "1.2"
        assert (headers["compression"], headers["terminating"]) == ("zstd", "false")
        assert headers["client_source_address"] == "127.0.0.1"
        assert push(connection, answer.client_instance_id, answer.subscription_id + 1, b"", terminating=True) == (
            "UNKNOWN_SUBSCRIPTION_ID"
        )
        connection.close()


def test_a_changed_subscription_reaches_clients_on_every_shard():
    with Broker(shards=2, memory="128MiB", settings={"client.telemetry.topic": TOPIC}) as broker:
        clients = [connected(broker)[0] for _ in range(4)]
        known = [ask(client).client_instance_id for client in clients]
        assert [ask(client, each).error_code for client, each in zip(clients, known, strict=True)] == [89] * 4
        subscribe(clients[0], "s", metrics="*", interval_ms="1000")
        answers = [ask(client, each) for client, each in zip(clients, known, strict=True)]
        assert [answer.requested_metrics for answer in answers] == [["*"]] * 4
        for client in clients:
            client.close()


def test_without_a_topic_clients_are_not_told_and_who_asks_is_answered():
    with Broker(shards=1, memory="128MiB") as broker:
        connection, served = connected(broker)
        assert not {71, 72} & served
        answer = ask(connection)
        assert (answer.error_code, answer.requested_metrics, answer.push_interval_ms) == (0, [], 300_000)
        assert push(connection, answer.client_instance_id, answer.subscription_id, b"x") == "NONE"
        assert push(connection, answer.client_instance_id, answer.subscription_id, b"x") == "THROTTLING_QUOTA_EXCEEDED"
        connection.close()
