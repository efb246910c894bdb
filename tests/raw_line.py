"""A raw connection to a broker, over TCP or through its socket file, and a login over it."""

import os
import socket
import struct

from millstream.wire.codec import decode_response, response_header_version
from millstream.wire.frames import request_frame
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest
from millstream.wire.sasl import SCRAM_SHA_256, client_final, client_first, read_server_first, salted_password

TIMEOUT_S = 60


class Line:
    """Requests and their answers, one by one."""

    def __init__(self, address):
        """``address`` is HOST:PORT, or the path of a socket file."""
        if "/" in address:
            directory = os.open(os.path.dirname(address), os.O_RDONLY)
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(TIMEOUT_S)
            try:
                self.sock.connect(f"/proc/self/fd/{directory}/{os.path.basename(address)}")
            finally:
                os.close(directory)
        else:
            host, _, port = address.rpartition(":")
            self.sock = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.number = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, request, version):
        self.number += 1
        self.sock.sendall(request_frame(request, version, self.number, "test"))

    def ask(self, request, version=None):
        version = type(request).VERSIONS[1] if version is None else version
        self.send(request, version)
        return self.answer(request, version)

    def answer(self, request, version):
        frame = self.frame()
        assert frame is not None, "the connection was closed"
        at = 5 if response_header_version(request.API_KEY, version) else 4
        return decode_response(request.API_KEY, version, memoryview(frame), at, len(frame))

    def bare(self, token):
        self.sock.sendall(len(token).to_bytes(4, "big") + token)
        return self.frame()

    def frame(self):
        """The next frame; None at the end."""
        head = self._exactly(4)
        return None if head is None else self._exactly(struct.unpack(">i", head)[0])

    def _exactly(self, size):
        data = b""
        while len(data) < size:
            try:
                piece = self.sock.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not piece:
                return None
            data += piece
        return data


def log_in(line, user, password, handshake=1):
    """Log in by SCRAM-SHA-256; the last answer."""
    assert line.ask(SaslHandshakeRequest("SCRAM-SHA-256"), handshake).error_code == 0
    first = client_first(user, "nonce-of-a-test")
    answer = line.ask(SaslAuthenticateRequest(first.gs2_header + first.bare), 2)
    assert answer.error_code == 0, answer.error_message
    challenge = read_server_first(answer.auth_bytes, "nonce-of-a-test")
    salted = salted_password(SCRAM_SHA_256, password, challenge.salt, challenge.iterations)
    return line.ask(SaslAuthenticateRequest(client_final(SCRAM_SHA_256, salted, first, challenge)), 2)
