"""A broker with several listeners: each tells its clients an address of its own."""

import socket

import pytest

from millstream.client.connection import Connection
from millstream.config.ports import free_ports
from millstream.testing.process import Broker, BrokerFailed
from millstream.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse

pytestmark = pytest.mark.process

NAMES = ("PLAINTEXT", "LAN", "SIX", "EVERY")


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def told(host, port):
    """What a client that came to this address is told of the broker's, by each way of asking."""
    with Connection(host, port) as connection:
        (broker,) = connection.call(MetadataRequest(topics=[]), MetadataResponse, 12).brokers
        (again,) = connection.call(DescribeClusterRequest(), DescribeClusterResponse, 1).brokers
        request = FindCoordinatorRequest(coordinator_keys=["g"])
        (coordinator,) = connection.call(request, FindCoordinatorResponse, 4).coordinators
    assert (again.host, again.port) == (coordinator.host, coordinator.port) == (broker.host, broker.port)
    return broker.host, broker.port


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_each_listener_tells_its_clients_its_own_address(tmp_path):
    listen = "PLAINTEXT://127.0.0.1:0,LAN://127.0.0.1:0,SIX://[::1]:0,EVERY://[::]:0"
    settings = {
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in NAMES),
        "advertised.listeners": "LAN://broker.example.org:19092",
    }
    with Broker(settings=settings, shards=1, memory="128MiB", listen=listen, data_dir=tmp_path / "data") as broker:
        listeners = broker.about()["listeners"]
        assert list(listeners) == list(NAMES)
        assert listeners["LAN"] == "broker.example.org:19092"
        assert broker.bootstrap == listeners["PLAINTEXT"]
        ports = {name: int(address.rpartition(":")[2]) for name, address in listeners.items()}
        assert told("127.0.0.1", ports["PLAINTEXT"]) == ("127.0.0.1", ports["PLAINTEXT"])
        assert listeners["SIX"] == f"[::1]:{ports['SIX']}"
        assert told("::1", ports["SIX"]) == ("::1", ports["SIX"])
        assert told("::1", ports["EVERY"]) == ("::1", ports["EVERY"])
        assert told("127.0.0.1", ports["EVERY"]) == ("127.0.0.1", ports["EVERY"])


def test_what_is_advertised_is_told_to_who_came_by_that_listener_alone(tmp_path):
    (port,) = free_ports(1)
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LAN:PLAINTEXT",
        "advertised.listeners": "LAN://broker.example.org:19092",
    }
    listen = f"LAN://127.0.0.1:{port},PLAINTEXT://127.0.0.1:0"
    with Broker(settings=settings, shards=1, memory="128MiB", listen=listen, data_dir=tmp_path / "data") as broker:
        assert broker.bootstrap == "broker.example.org:19092"
        assert told("127.0.0.1", port) == ("broker.example.org", 19092)
        host, _, other = broker.about()["listeners"]["PLAINTEXT"].rpartition(":")
        assert told(host, int(other)) == (host, int(other))


def test_a_taken_port_of_any_listener_is_named_and_nothing_is_begun(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        broker = Broker(
            settings={"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LAN:PLAINTEXT"},
            shards=1,
            memory="128MiB",
            listen=f"PLAINTEXT://127.0.0.1:0,LAN://127.0.0.1:{port}",
            data_dir=tmp_path / "data",
        )
        with pytest.raises(BrokerFailed, match=f"cannot listen on 127.0.0.1:{port}"):
            broker.start()
        broker.close()
