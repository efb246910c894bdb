"""What a client over its quota sees: throttle times, an unread connection, empty fetches, refused changes.

Raw requests to one real broker with two shards. Only least times are tested: an answer may be late, never early. Each
is measured from before the request that starts it, since the client may be late to see that answer, too.
"""

import contextlib
import socket
import time

import pytest
from edge_client import Client, batch, fetch_request

from millstream.client.connection import Connection
from millstream.model.error_code import ErrorCode
from millstream.wire.messages import alter_client_quotas as altering
from millstream.wire.messages import create_partitions as growing
from millstream.wire.messages import create_topics as creating
from millstream.wire.messages import delete_topics as deleting
from millstream.wire.messages import describe_client_quotas as describing
from millstream.wire.messages import fetch as fetching
from millstream.wire.messages import metadata
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from waits import until

pytestmark = pytest.mark.process

KIB = 1 << 10


def named(broker, client_id):
    """A client with this client id."""
    client = Client(broker)
    client.connection.close()
    host, port = broker.bootstrap.rsplit(":", 1)
    client.connection = Connection(host, int(port), client_id=client_id, timeout_s=60)
    return client


def alter(client, entity, version=1, validate_only=False, **values):
    """Set quotas; None removes. Returns (error, message)."""
    parts = [describing.EntityData(kind, name) for kind, name in entity.items()]
    ops = [altering.OpData(key, value or 0.0, value is None) for key, value in values.items()]
    request = altering.AlterClientQuotasRequest([altering.AlterEntryData(parts, ops)], validate_only)
    answer = client.connection.call(request, altering.AlterClientQuotasResponse, version).entries[0]
    assert sorted(answer.entity, key=lambda part: part.entity_type) == sorted(parts, key=lambda part: part.entity_type)
    return ErrorCode(answer.error_code).name, answer.error_message


def described(client, *components, strict=False, version=1):
    request = describing.DescribeClientQuotasRequest([describing.ComponentData(*one) for one in components], strict)
    answer = client.connection.call(request, describing.DescribeClientQuotasResponse, version)
    return [
        ({part.entity_type: part.entity_name for part in entry.entity}, {one.key: one.value for one in entry.values})
        for entry in answer.entries
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_altered_and_described(client, version):
    pair = {"user": None, "client-id": f"described-{version}"}
    assert alter(client, pair, version, request_percentage=50.5, producer_byte_rate=1e6) == ("NONE", None)
    assert alter(client, pair, version, True, request_percentage=1.0) == ("NONE", None)
    found = described(client, ("client-id", 0, f"described-{version}"), version=version)
    assert found == [(pair, {"producer_byte_rate": 1e6, "request_percentage": 50.5})]
    assert described(client, ("client-id", 0, f"described-{version}"), strict=True, version=version) == []
    assert described(client, ("user", 1, None), ("client-id", 2, None), strict=True, version=version) == found
    error, message = alter(client, {"ip": "not an address"}, version, connection_creation_rate=1.0)
    assert error == "INVALID_REQUEST" and "not a valid IP" in message
    assert alter(client, pair, version, request_percentage=None, producer_byte_rate=None) == ("NONE", None)
    assert described(client, ("client-id", 0, f"described-{version}"), version=version) == []


def produce(client, topic, size, version):
    """The throttle time of a produce."""
    data = [TopicProduceData(topic, bytes(16), [PartitionProduceData(0, batch(1, value=bytes(size)))])]
    answer = client.connection.call(
        ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), ProduceResponse, version
    )
    assert answer.responses[0].partition_responses[0].error_code == 0
    return answer.throttle_time_ms


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_producer_over_its_quota_is_told_to_wait_and_is_not_read_meanwhile(broker, client, version):
    topic, _ = client.create(partitions=1)
    who = f"greedy-{version}"
    assert alter(client, {"client-id": who}, producer_byte_rate=100_000.0)[0] == "NONE"
    greedy = named(broker, who)
    begun = time.monotonic()
    first = produce(greedy, topic, 1_047_000, version)  # the first window counts as ten: 1 MB may pass
    assert 1 <= first <= 5_000
    second = produce(greedy, topic, 100, version)
    assert time.monotonic() - begun >= first / 1_000
    assert second < first
    assert produce(client, topic, 1_020_000, version) == 0
    assert alter(client, {"client-id": who}, producer_byte_rate=None)[0] == "NONE"
    assert produce(greedy, topic, 1_020_000, version) == 0
    greedy.connection.close()


RECORDS = 12


class Reader:
    """Reads a topic of `RECORDS` record by record, again and again, with a fetch session or without."""

    def __init__(self, client, topic_id, session):
        self.client = client
        self.topic_id = topic_id
        self.known = (0, 0) if session else (0, -1)
        self.offset = self.empty = 0

    def read(self):
        request = fetch_request({(self.topic_id, 0): (self.offset % RECORDS, 60 * KIB)}, 13, self.known, ())
        answer = self.client.connection.call(request, fetching.FetchResponse, 13)
        assert answer.error_code == 0
        if answer.session_id:
            self.known = (answer.session_id, self.known[1] + 1)
        if answer.responses:
            assert len(answer.responses[0].partitions[0].records) > 50 * KIB
            self.offset += 1
        else:
            assert answer.throttle_time_ms > 0
            self.empty += 1


def test_a_fetch_over_the_quota_is_empty_and_gets_its_data_later(broker, client):
    topic, topic_id = client.create(partitions=1)
    for _ in range(RECORDS):
        client.produce(topic, 0, batch(1, value=bytes(50 * KIB)))
    assert alter(client, {"client-id": None}, consumer_byte_rate=50_000.0)[0] == "NONE"
    begun = time.monotonic()
    readers = [Reader(named(broker, f"reader-{session}"), topic_id, session) for session in (False, True)]
    for reader in readers:
        while reader.offset < RECORDS or not reader.empty:  # a slow machine reads all of it within the quota
            reader.read()
    assert time.monotonic() - begun >= 1
    assert alter(client, {"client-id": None}, consumer_byte_rate=None)[0] == "NONE"
    assert [reader.known[0] > 0 for reader in readers] == [False, True]
    for reader in readers:
        reader.client.connection.close()


def change(client, request, response, version):
    answer = client.connection.call(request, response, version)
    results = getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
    return answer.throttle_time_ms, [ErrorCode(one.error_code).name for one in results]


def test_changes_over_the_quota_are_refused_or_make_the_client_wait(broker, client):
    assert alter(client, {"client-id": "changer"}, controller_mutation_rate=0.001)[0] == "NONE"
    changer = named(broker, "changer")
    topics = [creating.CreatableTopic(f"mutated-{n}", 4, 1) for n in range(3)]
    wait_ms, errors = change(changer, creating.CreateTopicsRequest(topics, 10_000), creating.CreateTopicsResponse, 7)
    assert errors == ["NONE", "THROTTLING_QUOTA_EXCEEDED", "THROTTLING_QUOTA_EXCEEDED"]
    assert 3_900_000 < wait_ms <= 4_000_000
    changer.connection.close()
    for request, response, version in (
        (
            deleting.DeleteTopicsRequest([deleting.DeleteTopicState("mutated-0")], timeout_ms=10_000),
            deleting.DeleteTopicsResponse,
            6,
        ),
        (
            growing.CreatePartitionsRequest([growing.CreatePartitionsTopic("mutated-0", 6, None)], 10_000),
            growing.CreatePartitionsResponse,
            3,
        ),
    ):
        changer = named(broker, "changer")
        wait_ms, errors = change(changer, request, response, version)
        assert errors == ["THROTTLING_QUOTA_EXCEEDED"] and wait_ms > 0
        changer.connection.close()
    changer = named(broker, "changer")
    older = creating.CreateTopicsRequest([creating.CreatableTopic("mutated-3", 4, 1)], 10_000)
    wait_ms, errors = change(changer, older, creating.CreateTopicsResponse, 5)
    assert errors == ["NONE"] and wait_ms > 7_000_000
    changer.connection.close()
    assert alter(client, {"client-id": "changer"}, controller_mutation_rate=None)[0] == "NONE"


def test_a_client_that_uses_more_than_its_cpu_time_waits_a_window_at_most(broker, client):
    assert alter(client, {"user": "ANONYMOUS", "client-id": "busy"}, request_percentage=1e-6)[0] == "NONE"
    busy = named(broker, "busy")
    ask = metadata.MetadataRequest(topics=[])
    busy.connection.call(ask, metadata.MetadataResponse, 12)
    assert busy.connection.call(ask, metadata.MetadataResponse, 12).throttle_time_ms in range(1, 1_001)
    assert client.connection.call(ask, metadata.MetadataResponse, 12).throttle_time_ms == 0
    assert alter(client, {"user": "ANONYMOUS", "client-id": "busy"}, request_percentage=None)[0] == "NONE"
    busy.connection.close()


def test_clients_of_one_quota_share_it_over_all_shards(broker, client):
    """Connections are spread over two shards: what one connection has used, both shards know."""
    topic, _ = client.create(partitions=1)
    assert alter(client, {"client-id": "many"}, producer_byte_rate=2_000.0)[0] == "NONE"
    greedy = named(broker, "many")
    assert produce(greedy, topic, 400_000, 9) > 0

    def all_wait():
        fresh = [named(broker, "many") for _ in range(4)]
        waits = [produce(one, topic, 10, 9) for one in fresh]
        for one in fresh:
            one.connection.close()
        return all(waits)

    until(all_wait, "every shard has heard of it")
    assert alter(client, {"client-id": "many"}, producer_byte_rate=None)[0] == "NONE"
    greedy.connection.close()


def test_an_address_opens_connections_no_faster_than_its_quota(broker, client):
    """The quota is for an address of this machine that no other test uses."""
    assert alter(client, {"ip": "127.0.0.77"}, connection_creation_rate=1.0)[0] == "NONE"
    host, port = broker.bootstrap.rsplit(":", 1)
    ask = metadata.MetadataRequest(topics=[])

    def connects():
        with socket.create_connection((host, int(port)), 60, source_address=("127.0.0.77", 0)) as sock:
            sock.sendall(bytes.fromhex("00000013 0012 0000 00000001 0009") + b"a client.")  # ApiVersions 0
            with contextlib.suppress(ConnectionResetError):
                return bool(sock.recv(4))
            return False

    until(lambda: not all(connects() for _ in range(12)), "the quota is in force")
    client.connection.call(ask, metadata.MetadataResponse, 12)
    assert alter(client, {"ip": "127.0.0.77"}, connection_creation_rate=None)[0] == "NONE"
    until(lambda: all(connects() for _ in range(12)), "the quota is gone")
