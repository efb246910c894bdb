"""A port that is taken before it answers."""

import contextlib
import socket

import pytest

from millstream.app.listening import bind, serve
from millstream.errors import Unavailable


@pytest.fixture(params=["by number", "any"])
def listener(request):
    listener = bind("127.0.0.1", 0)
    if request.param == "by number":
        port = port_of(listener)
        listener.close()
        listener = bind("127.0.0.1", port)
    yield listener
    listener.close()


def port_of(listener):
    return listener.getsockname()[1]


def exchange(listener):
    """A client connects, says a word and is heard; both ends of the connection."""
    client = socket.create_connection(("127.0.0.1", port_of(listener)), timeout=60)
    listener.setblocking(True)
    accepted, _ = listener.accept()
    client.sendall(b"word")
    assert accepted.recv(4) == b"word"
    return client, accepted


def test_clients_are_refused_until_the_broker_serves(listener):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port_of(listener)), timeout=60)
    serve(listener)
    for end in exchange(listener):
        end.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("serving", [False, True])
def test_a_second_owner_of_the_port_is_refused_by_name_at_any_time(listener, serving, host):
    if serving:
        serve(listener)
    with pytest.raises(Unavailable, match=f"cannot listen on {host}:{port_of(listener)}"):
        bind(host, port_of(listener))
    if not serving:
        serve(listener)
    for end in exchange(listener):
        end.close()


def test_the_port_can_be_had_again_at_once_although_connections_of_the_former_broker_linger():
    first = bind("127.0.0.1", 0)
    port = port_of(first)
    serve(first)
    client, accepted = exchange(first)
    accepted.close()  # the side that closes first keeps the address for a minute
    assert client.recv(1) == b""
    client.close()
    first.close()
    second = bind("127.0.0.1", port)
    with contextlib.closing(second):
        serve(second)
        for end in exchange(second):
            end.close()


def test_an_address_of_another_machine_is_refused_by_name():
    with pytest.raises(Unavailable, match=r"cannot listen on 192\.0\.2\.1"):
        bind("192.0.2.1", 0)
