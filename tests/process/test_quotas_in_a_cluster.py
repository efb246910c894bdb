"""Quotas of three brokers: set at one, in force at each, kept when leaders move, brokers die and all restart."""

import contextlib
import socket

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.client import Cluster
from millstream.client.connection import Connection
from millstream.client.rights import entity_of, read_quotas, set_quotas
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.testing import cluster
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from millstream.wire.records import build_batch
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(900)]

ADDRESS = "127.0.0.78"
GREEDY = {"client-id": "greedy"}
BUSY = {"user": "ANONYMOUS", "client-id": "busy"}
CHANGER = {"user": "ANONYMOUS"}
QUOTAS = {
    entity_of(GREEDY): {"producer_byte_rate": 5_000.0},
    entity_of(BUSY): {"request_percentage": 1e-6},
    entity_of(CHANGER): {"controller_mutation_rate": 0.001},
    entity_of({"ip": ADDRESS}): {"connection_creation_rate": 1.0},
}


def connected(broker, client_id="test"):
    host, _, port = broker.bootstrap.rpartition(":")
    return Connection(host, int(port), client_id=client_id, timeout_s=60)


def quotas_at(broker):
    with connected(broker) as connection:
        return read_quotas(connection)


def leaders(brokers):
    with Cluster(brokers.bootstrap, timeout_s=60) as cluster:
        found = cluster.metadata(["t"]).topics["t"].partitions
        return {number: partition.node_id for number, partition in found.items()}


def throttled_produce(broker, partition):
    """The throttle time of a produce by the greedy client; None where that broker leads no more."""
    data = build_batch([(None, bytes(200_000), (), 0)])
    request = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData("t", partition_data=[PartitionProduceData(partition, [data])])],
    )
    with connected(broker, "greedy") as connection:
        answer = connection.call(request, ProduceResponse, 9)
    code = answer.responses[0].partition_responses[0].error_code
    return None if code else answer.throttle_time_ms


def throttles_producers(brokers, partition):
    """Whether the leader of a partition makes the greedy client wait."""
    try:
        leader = brokers.brokers.get(leaders(brokers)[partition])
        return leader is not None and leader.running and bool(throttled_produce(leader, partition))
    except MillstreamError:
        return False  # the leader has just died


def throttles_requests(broker):
    with connected(broker, "busy") as connection:
        ask = MetadataRequest(topics=[])
        return any(connection.call(ask, MetadataResponse, 12).throttle_time_ms for _ in range(2))


def refuses_changes(broker, name):
    topics = [CreatableTopic(f"{name}-{number}", 3, 1) for number in range(2)]
    with connected(broker, "changer") as connection:
        made = connection.call(CreateTopicsRequest(topics, 60_000), CreateTopicsResponse, 7)
    return {one.error_code for one in made.topics} & {ErrorCode.THROTTLING_QUOTA_EXCEEDED}


def connects(broker):
    """Whether the address with a quota gets an answer."""
    host, _, port = broker.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), 60, source_address=(ADDRESS, 0)) as sock:
        sock.sendall(bytes.fromhex("00000013 0012 0000 00000001 0009") + b"a client.")  # ApiVersions 0
        with contextlib.suppress(ConnectionResetError):
            return bool(sock.recv(4))
        return False


def refuses_connections(broker):
    return not all(connects(broker) for _ in range(12))


def test_quotas_hold_at_every_broker_through_moves_deaths_and_restarts():
    with cluster(3, networks=False) as brokers:
        administrator = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        administrator.create_topics([NewTopic("t", 3, 3)])["t"].result(120)
        first = brokers.brokers[1]

        def is_set(entity, values):
            try:
                with connected(first) as connection:
                    set_quotas(connection, entity, values)
                return True
            except MillstreamError:
                return False  # brokers have not agreed on the feature level so far

        for entity, values in QUOTAS.items():
            until(lambda entity=entity, values=values: is_set(entity, values), "a quota is taken")
        for node, broker in brokers.brokers.items():
            until(lambda broker=broker: quotas_at(broker) == QUOTAS, f"the quotas at broker {node}")
            until(lambda broker=broker: throttles_requests(broker), f"request_percentage at broker {node}")
            until(lambda broker=broker: refuses_connections(broker), f"connection_creation_rate at broker {node}")
            until(lambda broker=broker, node=node: refuses_changes(broker, f"by-{node}"), f"mutations by broker {node}")
        for partition in range(3):
            until(lambda partition=partition: throttles_producers(brokers, partition), f"the leader of {partition}")

        dead = leaders(brokers)[0]
        brokers.kill(dead)
        until(lambda: leaders(brokers)[0] not in (dead, -1), "another leader")
        until(lambda: throttles_producers(brokers, 0), "the new leader throttles")
        alive = next(broker for node, broker in brokers.brokers.items() if node != dead)

        def changed():
            try:
                with connected(alive) as connection:
                    set_quotas(connection, entity_of(GREEDY), {"producer_byte_rate": None, "consumer_byte_rate": 9.0})
                return True
            except MillstreamError:
                return False  # the controller has just died

        until(changed, "a change while a broker is down")
        wanted = {**QUOTAS, entity_of(GREEDY): {"consumer_byte_rate": 9.0}}
        brokers.restart(dead)
        for node, broker in brokers.brokers.items():
            until(lambda broker=broker: quotas_at(broker) == wanted, f"the change at broker {node}")
            until(lambda broker=broker: throttles_requests(broker), f"request_percentage at broker {node} again")

        for broker in brokers.brokers.values():
            broker.kill()
        brokers.start()
        for node, broker in brokers.brokers.items():
            until(lambda broker=broker: quotas_at(broker) == wanted, f"the quotas of broker {node} after a restart")
            until(lambda broker=broker: refuses_connections(broker), f"connections of broker {node} after a restart")
        until(lambda: throttled_anywhere(brokers) == 0, "the producer's quota stays removed")


def throttled_anywhere(brokers):
    """The longest throttle time of a produce to any partition; -1 while one has no leader."""
    try:
        found = [
            throttled_produce(brokers.brokers[leader], partition)
            for partition, leader in leaders(brokers).items()
            if leader in brokers.brokers
        ]
    except MillstreamError:
        return -1
    return -1 if len(found) < 3 or None in found else max(found)
