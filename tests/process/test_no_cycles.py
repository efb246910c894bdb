"""Requests leave nothing for the cycle collector, which a busy shard does not run (`shard.collector`).

Stock clients talk, what they said is said again many times, and a client goes through fetch sessions as Java's does.
A cycle made with each request would show as many objects of one kind.
"""

import contextlib
import json
import socket
import struct
import sys
from pathlib import Path

import pytest
from hostile_support import connect

from millstream.client.connection import Connection
from millstream.config.ports import free_ports
from millstream.testing import Broker
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from waits import until

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

from fuzz_traffic import Tap, aiokafka, kafka_python, librdkafka

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the clients
]

TIMES = 20
SHARDS = 2
PARTITIONS = 6
PATIENCE_S = 5.0


@pytest.fixture
def talk(tmp_path):
    """(broker that counts, the tap before it)."""
    with Tap() as tap:
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        tap.to(listen)
        settings = {
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{tap.port}",
            "group.initial.rebalance.delay.ms": 0,
            "internal.shard.hook": "cycles_hook:count_cycles",
        }
        env = {"MILLSTREAM_CYCLES": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)}
        with Broker({"steady": PARTITIONS}, settings, env=env, shards=SHARDS, listen=listen) as broker:
            yield broker, tap


def counted(directory):
    """What each shard found unreachable: kind → how many."""
    (directory / "count").touch()
    until(lambda: len(list(directory.glob("*.json"))) == SHARDS, "not every shard has counted")
    return [json.loads(path.read_text()) for path in directory.glob("*.json")]


def say_again(broker, request):
    """Send a request many times, and hear the answers until the broker closes: it may, or let some wait."""
    with connect(broker, blocking=True) as connection, contextlib.suppress(ConnectionError, TimeoutError):
        connection.settimeout(PATIENCE_S)
        connection.sendall((struct.pack(">i", len(request)) + request) * TIMES)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass


def fetch_in_sessions(bootstrap):
    host, port = bootstrap.rsplit(":", 1)
    partitions = [FetchPartition(number) for number in range(PARTITIONS)]
    connection = Connection(host, int(port))
    try:
        for _ in range(TIMES):
            session = 0
            for epoch in range(4):
                asked = [FetchTopic("steady", partitions=partitions)] if epoch == 0 else []
                request = FetchRequest(
                    max_wait_ms=10, min_bytes=1, session_id=session, session_epoch=epoch, topics=asked
                )
                session = connection.call(request, FetchResponse, 11).session_id
            connection.call(FetchRequest(session_id=session, session_epoch=-1), FetchResponse, 11)
    finally:
        connection.close()


def test_requests_of_every_kind_make_no_cycles(talk, tmp_path):
    broker, tap = talk
    for client in (librdkafka, kafka_python, aiokafka):
        client(f"127.0.0.1:{tap.port}")
    for request in tap.requests():
        say_again(broker, request)
    fetch_in_sessions(broker.bootstrap)
    for kinds in counted(tmp_path):
        assert not {kind: count for kind, count in kinds.items() if count >= TIMES}
