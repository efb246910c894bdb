"""One TCP connection to a broker: frames out, frames in, API versions negotiated.

Requests may be pipelined: ``send`` returns at once, ``receive`` returns the oldest outstanding response. Brokers answer
a connection in order; a response out of order ends the connection. Responses are received into one reused buffer, so
views into a response (the records of a fetch) are valid until the next ``receive``.

Every wait has a deadline. A connection that met an error is closed and not reopened; its user opens another. One that
the peer ends before its first answer, because it wants TLS, none, or a login, raises ``Rejected`` with what to set
(``client.mismatch``): further attempts would end alike.
"""

import os
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Self, TypeVar

from millstream.client.login import check_answer, check_handshake, exchange
from millstream.client.mismatch import mismatch
from millstream.client.security import PLAIN, Login, Security, secured
from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.secure.words import say
from millstream.wire.apis import APIS, api_name
from millstream.wire.codec import decode_response, response_header_version
from millstream.wire.errors import ProtocolError
from millstream.wire.frames import request_frame
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from millstream.wire.schema import FOREVER, Request, Response

_R = TypeVar("_R", bound=Response)

Dial = Callable[[], socket.socket]
"""Makes a connected socket. Raises OSError or MillstreamError."""

FRAME_BYTES_MAX: Final = 1 << 30
"""Maximum size of a response. A larger frame does not come from a Kafka broker."""

_VERSIONS_BYTES_MAX: Final = 1 << 20
"""Maximum size of the answer to ApiVersions. A refusal of TLS would be a frame of 352 MB."""

_KEPT_BUFFER_BYTES: Final = 16 << 20
"""Maximum size of a buffer that is kept for reuse. Larger ones are freed, so that one huge batch is not held for the
rest of a job.
"""

_SOFTWARE: Final = "millstream-client"


class Connection:
    """A connected socket. Closed by ``close``, by an error, or as a context manager."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = _SOFTWARE,
        timeout_s: float = 30.0,
        security: Security = PLAIN,
        dial: Dial | None = None,
    ) -> None:
        """Connect, and ask for the API versions of the broker. A ``host`` that starts with a slash is the path of a
        socket file; then there is no port. With ``dial`` the socket comes from there.

        Raises:
            Unavailable: nothing answers at the address, or not in time.
            Rejected: the peer does not speak Kafka's protocol, wants TLS or a login, or refuses them.
        """
        self.address = host if host.startswith("/") else f"{host}:{port}"
        self.client_id = client_id
        self.timeout_s = timeout_s
        self._due: deque[tuple[int, int, int]] = deque()
        self._correlation_id = 0
        self._buffer = bytearray(64 << 10)
        self._head = bytearray(4)
        self._unheard = dial is None and not host.startswith("/") and not security.opening
        """Whether the peer has answered no request so far, but for its versions; its end may then be explained."""
        self._explain = partial(mismatch, host, port, security)
        self.versions: dict[int, tuple[int, int]] = {}
        try:
            self._socket = _connected(host, port, timeout_s) if dial is None else dial()
        except OSError as error:
            raise Unavailable(f"no broker answers at {self.address}: {error}", ErrorCode.NETWORK_EXCEPTION) from error
        try:
            self._socket = secured(self._socket, host, security)
        except Unavailable as error:
            raise self._explained(error) from None
        try:
            if self._socket.family != socket.AF_UNIX:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.versions = self._negotiate()
            if security.login is not None:
                self._log_in(security.login)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    @property
    def in_flight(self) -> int:
        """Requests without a response so far."""
        return len(self._due)

    def close(self) -> None:
        """Close the connection. Outstanding responses are lost. Closing twice is allowed."""
        self._due.clear()
        with suppress(OSError):
            self._socket.close()

    def version_of(self, api_key: int, lowest: int = 0, highest: int = FOREVER) -> int:
        """The newest version of an API that both sides speak, within bounds (inclusive).

        Raises:
            Rejected: there is no such version.
        """
        ours = APIS[api_key].versions
        theirs = self.versions.get(api_key)
        low = max(ours[0], lowest, theirs[0] if theirs else 0)
        high = min(ours[1], highest, theirs[1] if theirs else -1)
        if theirs is None or low > high:
            served = f"only {theirs[0]} to {theirs[1]}" if theirs else "none"
            wanted = f"{api_name(api_key)} {max(ours[0], lowest)} to {min(ours[1], highest)}"
            raise Rejected(
                f"the broker at {self.address} serves no version of {wanted} ({served})", ErrorCode.UNSUPPORTED_VERSION
            )
        return high

    def call(self, request: Request, answer: type[_R], version: int) -> _R:
        """Send a request and wait for its response, with nothing else in flight."""
        assert not self._due, "answers are due on this connection"
        self.send(request, version)
        return self.receive(answer)

    def ask(self, request: Request, answer: type[_R], lowest: int = 0, highest: int = FOREVER) -> _R:
        """Call with the newest version that both sides speak, within bounds (inclusive).

        Raises:
            Rejected: there is no such version.
            Unavailable: the connection is lost, or the time is over.
        """
        return self.call(request, answer, self.version_of(request.API_KEY, lowest, highest))

    def send(self, request: Request, version: int) -> None:
        """Send a request without waiting for its response.

        Raises:
            Unavailable: the connection is lost.
        """
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = request_frame(request, version, self._correlation_id, self.client_id)
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(frame)
        except OSError as error:
            raise self._lost(error) from error
        self._due.append((request.API_KEY, version, self._correlation_id))

    def receive(self, answer: type[_R], wait_s: float = 0.0) -> _R:
        """The oldest outstanding response. ``wait_s`` is added to the time limit, for a request that waits on the
        broker.

        Raises:
            Unavailable: the connection is lost, or the time is over.
            ProtocolError: the response is malformed.
        """
        api_key, version, correlation_id = self._due[0]
        view = self._receive_frame(time.monotonic() + self.timeout_s + wait_s)
        if int.from_bytes(view[:4], "big", signed=True) != correlation_id:
            self.close()
            raise ProtocolError(f"the broker at {self.address} answered out of order")
        self._due.popleft()
        self._unheard = self._unheard and not self.versions
        start = 5 if response_header_version(api_key, version) else 4
        try:
            response = decode_response(api_key, version, view, start, len(view))
        except ProtocolError:
            self.close()
            raise
        assert isinstance(response, answer), f"{api_name(api_key)} is answered by {type(response).__name__}"
        return response

    def _receive_frame(self, deadline: float) -> memoryview:
        head = memoryview(self._head)
        self._read_into(head, deadline)
        size = int.from_bytes(head, "big")
        if not 4 <= size <= (FRAME_BYTES_MAX if self.versions else _VERSIONS_BYTES_MAX):
            what = "it answers HTTP" if bytes(head) == b"HTTP" else f"a frame of {size} bytes"
            self.close()
            raise self._explained(ProtocolError(f"what answers at {self.address} is no Kafka broker ({what})"))
        if not len(self._buffer) >= size or len(self._buffer) > max(size, _KEPT_BUFFER_BYTES):
            # Not resized in place: the caller may still hold views of the last response.
            self._buffer = bytearray(size if size > _KEPT_BUFFER_BYTES else 1 << (size - 1).bit_length())
        view = memoryview(self._buffer)[:size]
        self._read_into(view, deadline)
        return view

    def _read_into(self, view: memoryview, deadline: float) -> None:
        at, size = 0, len(view)
        try:
            while at < size:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("timed out")
                self._socket.settimeout(left)
                count = self._socket.recv_into(view[at:])
                if not count:
                    raise ConnectionResetError("the broker closed the connection")
                at += count
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> MillstreamError:
        self.close()
        if isinstance(error, TimeoutError):
            return Unavailable(f"lost the broker at {self.address}: {error}", ErrorCode.REQUEST_TIMED_OUT)
        if isinstance(error, ssl.SSLError) and not self.versions and "ALERT" in (error.reason or ""):
            words = f"TLS failed with {self.address}: {say(error)}"  # TLS 1.3 refuses a client after its handshake
            return Rejected(words, ErrorCode.SASL_AUTHENTICATION_FAILED)
        return self._explained(Unavailable(f"lost the broker at {self.address}: {error}", ErrorCode.NETWORK_EXCEPTION))

    def _explained(self, error: MillstreamError) -> MillstreamError:
        """``error``, or what the client has to change."""
        why = self._explain(negotiated=bool(self.versions)) if self._unheard else ""
        return Rejected(f"{self.address}: {why}", ErrorCode.SASL_AUTHENTICATION_FAILED) if why else error

    def _log_in(self, login: Login) -> None:
        check_handshake(login, self.ask(SaslHandshakeRequest(login.mechanism), SaslHandshakeResponse, lowest=1))
        steps = exchange(login)
        token = next(steps)
        while True:
            answer = self.ask(SaslAuthenticateRequest(token), SaslAuthenticateResponse)
            try:
                token = steps.send(check_answer(login, answer))
            except StopIteration:
                return

    def _negotiate(self) -> dict[int, tuple[int, int]]:
        newest = APIS[ApiVersionsRequest.API_KEY].versions[1]
        request = ApiVersionsRequest(client_software_name=_SOFTWARE, client_software_version="1")
        self.send(request, newest)
        api_key, version, correlation_id = self._due[0]
        view = bytes(self._receive_frame(time.monotonic() + self.timeout_s))
        # A broker that does not know the version answers error 35 in version 0. No other response starts like that.
        refused = struct.pack(">ih", correlation_id, ErrorCode.UNSUPPORTED_VERSION)
        if view.startswith(refused):
            self._due.clear()
            answer = self.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
        else:
            self._due.popleft()
            decoded = decode_response(api_key, version, view, 4, len(view))
            assert isinstance(decoded, ApiVersionsResponse)
            answer = decoded
        if answer.error_code:
            raise Rejected(f"the broker at {self.address} refused to name its versions", ErrorCode(answer.error_code))
        return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}


def _connected(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connected socket. A path longer than a socket's address is reached through its directory's descriptor."""
    if not host.startswith("/"):
        return socket.create_connection((host, port), timeout=timeout_s)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(os.path.dirname(host), os.O_RDONLY | os.O_DIRECTORY)
    try:
        made.settimeout(timeout_s)
        made.connect(f"/proc/self/fd/{directory}/{os.path.basename(host)}")
    except OSError:
        made.close()
        raise
    finally:
        os.close(directory)
    return made
