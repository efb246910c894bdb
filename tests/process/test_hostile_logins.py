"""Thousands of connections that are not logged in, beside clients that must not notice: half requests, half logins,
broken and enormous tokens.
"""

import json
import socket
import struct

import pytest
from bench import raw
from hostile_support import BUDGET_BYTES, clients_go_on, nobody_notices, sound, within_budget

from millstream.testing import Broker
from millstream.wire.frames import request_frame
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest

pytestmark = [pytest.mark.process, pytest.mark.slow]

CROWD = 5_000
LINES_A_MINUTE = 6
HANDSHAKE = bytes(request_frame(SaslHandshakeRequest("SCRAM-SHA-256"), 1, 1, "x"))


@pytest.fixture(scope="module")
def running():
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "listener.security.protocol.map": "A:PLAINTEXT,S:SASL_PLAINTEXT",
        "super.users": "User:ANONYMOUS",
        "connection.failed.authentication.delay.ms": "100",
    }
    options = {"listen": "A://127.0.0.1:0,S://127.0.0.1:0", "shards": 2, "memory": str(BUDGET_BYTES)}
    with Broker(topics={"steady": 2, "beside": 1}, settings=settings, **options) as started:
        clients_go_on(started, "before")
        yield started


def token(data):
    return bytes(request_frame(SaslAuthenticateRequest(data), 2, 2, "x"))


STRANGERS = {
    "silent": b"",
    "half a request": struct.pack(">i", 60_000) + bytes(30_000),
    "half a produce": struct.pack(">i", 60_000) + b"\0\0\0\x09" + bytes(30_000),
    "half a login": HANDSHAKE + token(b"n,,n=nobody,r=nonce-of-a-test"),
    "broken tokens": HANDSHAKE + token(b"\xff\x00n,,=,r="),
    "enormous tokens": HANDSHAKE + token(b"n,,n=" + b"x" * 50_000 + b",r=n"),
    "another API": bytes(raw.batch([b"x"])),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_five_thousand_connections_before_their_login_are_not_noticed(running, kind, many_descriptors, connections):
    about = json.loads((running.data_dir / "broker.json").read_text())
    host, _, port = about["listeners"]["S"].rpartition(":")
    said_before = len(running.log_path.read_text())
    with sound(running), nobody_notices(running, "beside"):
        for _ in range(CROWD):
            sock = connections.enter_context(socket.create_connection((host, int(port)), timeout=60))
            sock.setblocking(False)
            try:
                sock.send(STRANGERS[kind])
            except (BlockingIOError, ConnectionError):
                continue  # it was closed for a newer one
        within_budget(running)
        clients_go_on(running, kind.replace(" ", "-"))
    said = running.log_path.read_text()[said_before:]
    lines = [line for line in said.splitlines() if "login" in line or "closed the connection" in line]
    assert len(lines) <= 3 * 2 * LINES_A_MINUTE, "\n".join(lines[:20])  # two shards, three kinds of lines, a minute
