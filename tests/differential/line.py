"""A connection that sends anything, and sees what a broker makes of it.

Three things can happen to a request: a frame comes back, the connection is closed, or nothing comes. The last is only
believed when a request behind it is answered (``Talk.unanswered``), never because some time went by; a broker that
says nothing for ``PATIENCE_S`` is reported as silent.
"""

import contextlib
import socket
import struct

PATIENCE_S = 120.0

CLOSED = "the connection is closed"
SILENT = "no answer"


class Line:
    """One connection. ``receive`` gives a frame, ``CLOSED`` or ``SILENT``."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._got = bytearray()
        self._silent = False
        self.correlation_id = 0

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Sends; that the other side is gone is seen when its answer is read."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def end_of_sending(self) -> None:
        """Tells the other side that nothing more comes; what it still has to say can be read."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def receive(self, patience_s: float = PATIENCE_S) -> bytes | str:
        """The next frame without its size; a broker that was silent once is not waited for again."""
        if self._silent:
            return SILENT
        try:
            self._socket.settimeout(patience_s)
            while len(self._got) < 4 or len(self._got) < 4 + struct.unpack_from(">i", self._got)[0]:
                part = self._socket.recv(1 << 20)
                if not part:
                    return CLOSED
                self._got += part
        except TimeoutError:
            self._silent = True
            return SILENT
        except ConnectionError:
            return CLOSED
        end = 4 + struct.unpack_from(">i", self._got)[0]
        frame = bytes(self._got[4:end])
        del self._got[:end]
        return frame
