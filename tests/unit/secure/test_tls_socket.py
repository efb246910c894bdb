"""TLS sockets over real ones: what goes in comes out, whatever the kernel takes at once."""

import random
import socket
import ssl

import pytest

import certificates
from millstream.secure.authority import issue
from millstream.secure.contexts import client_context, server_context
from millstream.secure.material import Material
from millstream.secure.options import TlsOptions
from millstream.secure.tls_socket import ENCRYPT_BYTES, RECORD_BYTES, TlsSocket


@pytest.fixture(scope="module")
def contexts():
    authority = certificates.authority()
    pair = issue(authority, "broker", ["localhost"])
    options = TlsOptions()
    server = server_context(Material(pair.key, "", pair.certificate), options)
    client = client_context(Material(trusted=authority.certificate), options)
    return server, client


def pair(contexts, buffer_bytes=0):
    """Two ends, handshake done."""
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
        if buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    server = TlsSocket(ours, contexts[0], server_side=True)
    client = TlsSocket(theirs, contexts[1], server_side=False, server_hostname="localhost")
    done = [False, False]
    for _ in range(20):
        for at, end in enumerate((client, server)):
            done[at] = done[at] or end.handshake()
        if all(done):
            return server, client
    raise AssertionError("no handshake")


def receive_all(end, room):
    """What is there now, received into ``room`` bytes at a time."""
    data = b""
    while True:
        view = memoryview(bytearray(room))
        try:
            count = end.recv_into(view)
        except BlockingIOError:
            assert not end.more
            return data
        if not count:
            return data
        data += view[:count]


@pytest.mark.parametrize("seed", range(12))
def test_bytes_arrive_in_order_whatever_the_kernel_takes(contexts, seed):
    chance = random.Random(seed)
    sender, receiver = pair(contexts, buffer_bytes=chance.choice([4096, 65536, 1 << 20]))
    data = chance.randbytes(chance.choice([1, 5000, 300_000, 2_000_000]))
    room = chance.choice([1000, 16_384, 100_000, 512 << 10])
    at = 0
    found = b""
    while at < len(data) or len(found) < len(data):
        views, end = [], at
        while end < min(len(data), at + (1 << 20)) and len(views) < 256:
            size = chance.choice([1, 100, 4095, 4096, 70_000])
            views.append(memoryview(data)[end : end + size])
            end = min(len(data), end + size)
        try:
            if views:
                count = sender.sendmsg(views)
                assert 0 < count <= min(end - at, ENCRYPT_BYTES)
                at += count
        except BlockingIOError:
            pass
        if chance.random() < 0.7:
            found += receive_all(receiver, room)
    assert found == data
    sender.close()
    assert receiver.recv_into(memoryview(bytearray(10))) == 0
    receiver.close()


def test_sent_means_that_the_kernel_has_the_ciphertext(contexts):
    sender, receiver = pair(contexts, buffer_bytes=4096)
    data = bytes(1 << 20)
    told = 0
    for _ in range(100):
        try:
            told += sender.send(memoryview(data)[told:])
        except BlockingIOError:
            break
    sender._socket.shutdown(socket.SHUT_WR)  # what the kernel has, and no more
    assert told <= len(receive_all(receiver, 1 << 20)) <= told + 2 * RECORD_BYTES
    sender._socket.close()
    receiver.close()


def test_a_socket_that_is_not_read_keeps_a_record_at_most(contexts):
    sender, receiver = pair(contexts, buffer_bytes=1 << 20)
    assert sender.send(bytes(200_000)) == 200_000
    assert receiver.recv_into(memoryview(bytearray(100))) == 100
    assert receiver.more
    assert receiver._tls.pending() + receiver._in.pending <= RECORD_BYTES + 600
    found = 100
    while found < 200_000:
        assert receiver.more
        found += len(receive_all(receiver, 1000))
    assert found == 200_000
    sender.close()
    receiver.close()


def test_views_of_a_frame_are_filled_one_after_the_other(contexts):
    sender, receiver = pair(contexts)
    sender.sendmsg([b"a" * 10, b"b" * 5000, b"c"])
    views = [memoryview(bytearray(size)) for size in (7, 5000, 100)]
    assert receiver.recvmsg_into(views) == (5011, None)
    assert b"".join(views)[:5011] == b"a" * 10 + b"b" * 5000 + b"c"
    sender.close()
    receiver.close()


def test_what_came_with_the_end_of_the_handshake_is_there(contexts):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    server = TlsSocket(ours, contexts[0], server_side=True)
    client = TlsSocket(theirs, contexts[1], server_side=False, server_hostname="localhost")
    assert not client.handshake()
    assert not server.handshake()
    assert client.handshake()
    assert client.send(b"first") == 5  # with the client's last flight
    assert server.handshake()
    assert server.more
    assert server.recv(100) == b"first"
    server.close()
    client.close()


def test_garbage_ends_a_handshake_with_words(contexts):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    server = TlsSocket(ours, contexts[0], server_side=True)
    theirs.send(b"\x16\x03\x01\x00\x05hello")
    with pytest.raises(ssl.SSLError):
        server.handshake()
    server.close()
    theirs.close()


def test_a_peer_that_ends_without_a_word_is_an_end(contexts):
    sender, receiver = pair(contexts)
    sender.send(b"x" * 100)
    sender._socket.close()
    assert receive_all(receiver, 1000) == b"x" * 100
    assert receiver.recv(10) == b""
    receiver.close()
