"""The HTTP port against clients that ask for nothing, for too much, or for no URL."""

import socket
import urllib.request

import pytest

from millstream.admin import http
from millstream.admin.http import HttpServer, Routes
from millstream.telemetry.metrics import StatsSlab


def routes():
    return Routes(StatsSlab(), lambda: b"page\n", dict, lambda topic: {"topic": topic}, lambda *_: None)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(http, "OPEN_MAX", 3)
    served = HttpServer("127.0.0.1", 0, routes())
    served.start()
    yield served
    served.stop()


def connected(server):
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_connections_that_ask_for_nothing_are_bounded_and_make_room_when_they_go(server):
    silent = [connected(server) for _ in range(3)]
    with connected(server) as one_more:
        assert one_more.recv(1) == b"", "each connection costs a thread and a descriptor of the supervisor"
    for sock in silent:
        sock.close()
    answer = b""
    while not answer:  # a closed connection is noticed a little later
        with connected(server) as sock:
            sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            try:
                answer = sock.makefile("rb").read()
            except ConnectionResetError:
                continue
    assert answer.endswith(b"page\n")


def test_what_is_no_url_is_answered():
    assert routes().answer("http://[")[0] == 404


def test_a_start_does_not_wait_for_the_resolver(monkeypatch):
    def slow(name=""):
        raise AssertionError(f"asked who {name} is")

    monkeypatch.setattr(socket, "getfqdn", slow)
    server = HttpServer("127.0.0.1", 0, routes())
    server.start()
    try:
        assert urllib.request.urlopen(f"{server.url}/metrics", timeout=30).read() == b"page\n"
    finally:
        server.stop()
