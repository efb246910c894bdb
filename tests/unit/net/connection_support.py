"""A server of frames in this process, and a client of it."""

import os
import socket
import struct
import threading

from millstream.iobuf import Arena, IoBuf
from millstream.net.intake import Intake
from millstream.shard.reactor import Reactor
from millstream.telemetry.metrics import StatsSlab


class Server:
    """An intake that answers every frame with its own bytes."""

    def __init__(self, arena_bytes=16 << 20, frame_bytes_max=4 << 20, respond=None):
        self.stats = StatsSlab(0, "shard")
        self.reactor = Reactor(0, self.stats)
        self.arena = Arena.create(0, arena_bytes, poison=True)
        self.frames = []
        self.clients = []
        self.respond = respond or self.echo
        self.intake = Intake(
            self.reactor, self.arena, self.stats, frame_bytes_max, 600_000, 30_000, self.on_frame, self.on_chain
        )

    def on_frame(self, connection, frame):
        self.frames.append(len(frame))
        self.respond(connection, bytes(frame))

    def on_chain(self, connection, chain):
        assert isinstance(chain, IoBuf)
        self.on_frame(connection, memoryview(bytes(chain)))

    def echo(self, connection, frame):
        connection.exchange().complete((struct.pack(">i", len(frame)) + frame,), len(frame) + 4)

    def connect(self):
        ours, theirs = socket.socketpair()
        theirs.settimeout(60)
        self.clients.append(theirs)
        self.intake.open(ours, ("127.0.0.1", 1), ("127.0.0.1", 2))
        return theirs

    def run(self, client):
        """Run the reactor while ``client`` runs in a thread; re-raise what it raised."""
        done_read, done_write = os.pipe()
        errors = []

        def work():
            try:
                client()
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)
            finally:
                os.write(done_write, b"x")

        thread = threading.Thread(target=work)
        self.reactor.add_reader(done_read, self.reactor.stop)
        thread.start()
        self.reactor.run()
        thread.join()
        os.close(done_read)
        os.close(done_write)
        if errors:
            raise errors[0]
        assert self.reactor.exit_code == 0

    def close(self):
        self.intake.close_all()
        for client in self.clients:
            client.close()
        self.reactor.close()


def frame(body):
    return struct.pack(">i", len(body)) + body


def receive(sock, size):
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError(f"{len(data)} of {size} bytes")
        data += part
    return bytes(data)


def receive_frame(sock):
    return receive(sock, struct.unpack(">i", receive(sock, 4))[0])
