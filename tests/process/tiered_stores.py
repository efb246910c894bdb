"""Object stores for the tests of tiered topics that can be away: a directory, and a bucket of S3 (moto) behind a gate.

A store is away in one of several ways. Connections to S3 are refused, accepted and never answered, or answered with
``503 SlowDown``; in the place of the directory is a file. A slow store gets everything `SLOW_S` seconds late. Brokers
get its URL as a setting, and find credentials and endpoint in the environment.
"""

import contextlib
import logging
import os
import socket
import threading
import urllib.request

from millstream.objects import open_store
from waits import moment

REFUSED, STALLED, THROTTLED, SLOW = "refused", "stalled", "throttled", "slow"
SLOW_S = 0.3
_SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


class Directory:
    """A directory as the store."""

    def __init__(self, path):
        self._path, self._hidden = path, path.with_name("hidden")
        self.url = f"file://{path}"

    def away(self, how):
        assert how == REFUSED
        os.rename(self._path, self._hidden)
        self._path.write_text("no directory")

    def back(self):
        self._path.unlink()
        os.rename(self._hidden, self._path)

    def open(self):
        return open_store(self.url)


class S3:
    """A bucket of moto, which brokers reach through a gate."""

    url = "s3://bucket/prefix"

    def __init__(self, gate):
        self.away, self.back = gate.shut, gate.reopen

    def open(self):
        return open_store(self.url)


class Gate:
    """A port that passes connections on to a server, as long as it is open."""

    def __init__(self, target):
        self._target = target
        self._how = ""
        self._connections = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self, how):
        with self._lock:
            self._how = how
            for connection in self._connections:
                _end(connection)

    def reopen(self):
        self.shut("")

    def close(self):
        _end(self._listener)
        self._listener.close()
        self.shut(REFUSED)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client):
        with contextlib.suppress(OSError), client:
            with self._lock:
                how = self._how
                self._connections.add(client)
            try:
                if how == THROTTLED:
                    client.recv(1 << 16)
                    head = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
                    client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(_SLOW_DOWN) + _SLOW_DOWN)
                elif how == STALLED:
                    while client.recv(1 << 16):
                        pass
                elif how in ("", SLOW):
                    moment(SLOW_S if how else 0)
                    with socket.create_connection(self._target) as server:
                        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                        back.start()
                        _pump(client, server)
                        back.join()
            finally:
                with self._lock:
                    self._connections.discard(client)


def _pump(source, sink):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    _end(sink)


def _end(connection):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def object_store(kind, tmp_path, monkeypatch):
    """A store of a kind, ``local`` or ``s3``; for S3 the environment says where it is."""
    if kind == "local":
        yield Directory(tmp_path / "bucket")
        return
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    gate = Gate(server.get_host_and_port())
    try:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{gate.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
        }.items():
            monkeypatch.setenv(name, value)
        url = f"http://127.0.0.1:{gate.port}"
        for path in ("moto-api/reset", "bucket"):
            verb = "POST" if path.startswith("moto") else "PUT"
            urllib.request.urlopen(urllib.request.Request(f"{url}/{path}", method=verb), timeout=60).close()
        yield S3(gate)
    finally:
        gate.close()
        server.stop()
