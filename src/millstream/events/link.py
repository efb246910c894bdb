"""One connection to a broker on the engine's loop: requests are pipelined, answers come in order.

A lost connection fails every request in flight with ``Unavailable``; whether the broker carried one out is then not
known, and the caller decides what that means. A link that failed stays failed; its user opens another.

Answers are received into the memory that they stay in: small ones out of a buffer of the link, large ones into memory
of their own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Final, TypeVar, cast

from millstream.client.login import check_answer, check_handshake, exchange
from millstream.client.mismatch import mismatch
from millstream.client.security import PLAIN, Login, Security, context_of
from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.secure.words import say
from millstream.wire.apis import APIS, api_name
from millstream.wire.codec import decode_response, encode_response_vectored, response_header_version
from millstream.wire.errors import ProtocolError
from millstream.wire.headers import encode_request_header
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from millstream.wire.schema import Request, Response

_R = TypeVar("_R", bound=Response)

FRAME_BYTES_MAX: Final = 1 << 30
_VERSIONS_BYTES_MAX: Final = 1 << 20
_CONNECT_SECONDS: Final = 10.0
_BUFFER_BYTES: Final = 64 << 10
_LENGTH_BYTES: Final = 4
_SASL_AUTHENTICATE: Final = 36
_SOFTWARE: Final = "millstream-events"


class Link:
    """A connection. ``open`` makes one."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        self._transport: asyncio.Transport | None = None
        """None until it is connected."""
        self._due: deque[tuple[int, int, int, asyncio.Future[Response]]] = deque()
        self._correlation_id = 0
        self._failed: MillstreamError | None = None

    @classmethod
    async def open(cls, host: str, port: int, security: Security = PLAIN) -> Link:
        """Connect, with TLS if the security says so, and negotiate versions.

        Raises:
            Unavailable: nothing answers.
            Rejected: it is no broker that serves event topics; or it wants TLS or a login, or refuses them.
        """
        link = cls(f"{host}:{port}")
        try:
            await link._connect(host, port, security)
            await link._greet(security.login)
        except Unavailable as error:
            link.close()
            negotiated, loop = bool(link.versions), asyncio.get_running_loop()
            why = await loop.run_in_executor(None, lambda: mismatch(host, port, security, negotiated=negotiated))
            if why:
                raise Rejected(f"{link.address}: {why}", ErrorCode.SASL_AUTHENTICATION_FAILED) from None
            raise error from None
        except BaseException:
            link.close()
            raise
        return link

    async def _connect(self, host: str, port: int, security: Security) -> None:
        try:
            loop = asyncio.get_running_loop()
            context = context_of(security) if security.speaks_tls else None
            connecting = loop.create_connection(lambda: _Frames(self), host, port, ssl=context)
            await asyncio.wait_for(connecting, _CONNECT_SECONDS)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            raise Unavailable(f"TLS failed with {host}: {say(error)}", ErrorCode.NETWORK_EXCEPTION) from None
        except ssl.SSLError as error:
            raise Rejected(f"TLS failed with {host}: {say(error)}", ErrorCode.SASL_AUTHENTICATION_FAILED) from None
        except (TimeoutError, OSError) as error:
            raise Unavailable(f"no broker answers at {self.address}: {error}", ErrorCode.NETWORK_EXCEPTION) from error

    async def _greet(self, login: Login | None) -> None:
        """Learn the versions and log in. Without a login the first request shows whether the broker asks for one."""
        request = ApiVersionsRequest(client_software_name=_SOFTWARE, client_software_version="1")
        answer = await self.call(request, ApiVersionsResponse, 3, _CONNECT_SECONDS)
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        if login is not None:
            await self.log_in(login)
            return
        if MetadataRequest.API_KEY in self.versions:
            version = self.version_of(MetadataRequest.API_KEY)
            await self.call(MetadataRequest(topics=[]), MetadataResponse, version, _CONNECT_SECONDS)

    async def log_in(self, login: Login) -> None:
        """Prove who this client is.

        Raises:
            Rejected: the broker does not take the login.
        """
        wait_s = _CONNECT_SECONDS
        shaken = await self.call(SaslHandshakeRequest(login.mechanism), SaslHandshakeResponse, 1, wait_s)
        check_handshake(login, shaken)
        version = self.version_of(_SASL_AUTHENTICATE)
        steps = exchange(login)
        token = await asyncio.get_running_loop().run_in_executor(None, next, steps)  # may ask an issuer
        while True:
            answer = await self.call(SaslAuthenticateRequest(token), SaslAuthenticateResponse, version, wait_s)
            try:
                token = steps.send(check_answer(login, answer))
            except StopIteration:
                return

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._failed is None

    def version_of(self, api_key: int, highest: int = 32767) -> int:
        """The newest version that both sides speak, ``highest`` at most.

        Raises:
            Rejected: the broker does not serve the API.
        """
        low, high = APIS[api_key].versions
        theirs = self.versions.get(api_key)
        if theirs is None or min(high, theirs[1], highest) < max(low, theirs[0]):
            raise Rejected(
                f"the broker at {self.address} does not serve {api_name(api_key)}", ErrorCode.UNSUPPORTED_VERSION
            )
        return min(high, theirs[1], highest)

    async def call(self, request: Request, answer: type[_R], version: int, timeout_s: float) -> _R:
        """Send a request and wait for its answer.

        Raises:
            Unavailable: the connection was lost, or the time is over; the link is then closed.
        """
        if self._failed is not None:
            raise self._failed
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        head = encode_request_header(request.API_KEY, version, self._correlation_id, _SOFTWARE)
        parts = encode_vectored(request, version, head)
        due: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._due.append((request.API_KEY, version, self._correlation_id, due))
        assert self._transport is not None, "a link is opened before it is used"
        self._transport.writelines([sum(map(len, parts)).to_bytes(4, "big"), *parts])
        try:
            response = await asyncio.wait_for(asyncio.shield(due), timeout_s)
        except TimeoutError as error:
            self._fail(Unavailable(f"the broker at {self.address} did not answer in time", ErrorCode.REQUEST_TIMED_OUT))
            raise self._failed or error from error
        assert isinstance(response, answer), f"{api_name(request.API_KEY)} is answered by {type(response).__name__}"
        return response

    def close(self) -> None:
        """Close; what is in flight fails."""
        self._fail(Unavailable(f"the connection to {self.address} was closed", ErrorCode.NETWORK_EXCEPTION))

    def connected(self, transport: asyncio.Transport) -> None:
        """Requests can be sent."""
        self._transport = transport

    def received(self, frame: memoryview) -> None:
        """The next frame, without its length."""
        try:
            api_key, version, correlation_id, due = self._due[0]
            if int.from_bytes(frame[:4], "big") != correlation_id:
                raise ProtocolError("an answer out of order")
            start = 5 if response_header_version(api_key, version) else 4
            response = decode_response(api_key, version, frame, start, len(frame))
        except (IndexError, ProtocolError) as error:
            self.lost(error)
            return
        self._due.popleft()
        if not due.done():
            due.set_result(response)

    def lost(self, reason: Exception | None) -> None:
        """Nothing more will be received."""
        if isinstance(reason, ssl.SSLError) and not self.versions and "ALERT" in (reason.reason or ""):
            words = f"TLS failed with {self.address}: {say(reason)}"  # TLS 1.3 refuses a client after its handshake
            self._fail(Rejected(words, ErrorCode.SASL_AUTHENTICATION_FAILED))
            return
        why = reason or "it closed the connection"
        self._fail(Unavailable(f"lost the broker at {self.address}: {why}", ErrorCode.NETWORK_EXCEPTION))

    def _fail(self, error: MillstreamError) -> None:
        if self._failed is None:
            self._failed = error
            if self._transport is not None:
                self._transport.close()
        while self._due:
            due = self._due.popleft()[3]
            if not due.done():
                due.set_exception(error)
                due.exception()  # retrieved here: the caller may have stopped waiting


class _Frames(asyncio.BufferedProtocol):
    """Cuts what a connection receives into frames. A frame that is not whole in the link's buffer gets memory of its
    own, and the rest is received into that.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._filled = 0
        self._large: memoryview | None = None
        """A frame that is being received, ``_large_at`` bytes of it so far."""
        self._large_at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.link.connected(cast("asyncio.Transport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        _ = sizehint
        return self._buffer[self._filled :] if self._large is None else self._large[self._large_at :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is None:
            self._filled += nbytes
            self._cut()
            return
        self._large_at += nbytes
        if self._large_at == len(self._large):
            frame, self._large = self._large, None
            self.link.received(frame.toreadonly())

    def _cut(self) -> None:
        """Hand out the frames in the buffer. What is left of it afterwards is less than a length, or a large frame."""
        at, filled = 0, self._filled
        while filled - at >= _LENGTH_BYTES and self.link.is_open:
            size = int.from_bytes(self._buffer[at : at + _LENGTH_BYTES], "big")
            if not _LENGTH_BYTES <= size <= (FRAME_BYTES_MAX if self.link.versions else _VERSIONS_BYTES_MAX):
                self.link.lost(ProtocolError(f"a frame of {size} bytes"))
                return
            at += _LENGTH_BYTES
            if filled - at < size:
                self._large = memoryview(bytearray(size))
                self._large_at = filled - at
                self._large[: self._large_at] = self._buffer[at:filled]
                at = filled
                break
            self.link.received(memoryview(bytes(self._buffer[at : at + size])))
            at += size
        self._buffer[: filled - at] = bytes(self._buffer[at:filled])
        self._filled = filled - at


def encode_vectored(request: Request, version: int, head: bytes) -> list[bytes | bytearray | memoryview]:
    """A request as buffers; batches are passed through."""
    return encode_response_vectored(request, version, head)  # pyright: ignore[reportArgumentType]
