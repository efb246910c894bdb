"""One connection to a broker on the engine's loop: requests are pipelined, answers come in order.

A lost connection fails every request in flight with ``Unavailable``; whether the broker carried one out is then not
known, and the caller decides what that means. A link that failed stays failed; its user opens another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final, TypeVar

from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.apis import APIS, api_name
from millstream.wire.codec import decode_response, encode_response_vectored, response_header_version
from millstream.wire.errors import ProtocolError
from millstream.wire.headers import encode_request_header
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.schema import Request, Response

_R = TypeVar("_R", bound=Response)

FRAME_BYTES_MAX: Final = 1 << 30
_CONNECT_SECONDS: Final = 10.0
_SOFTWARE: Final = "millstream-events"


class Link:
    """A connection. ``open`` makes one."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        self._reader = reader
        self._writer = writer
        self._due: deque[tuple[int, int, int, asyncio.Future[Response]]] = deque()
        self._correlation_id = 0
        self._failed: MillstreamError | None = None
        self._receiving = asyncio.create_task(self._receive())

    @classmethod
    async def open(cls, host: str, port: int) -> Link:
        """Connect and negotiate versions.

        Raises:
            Unavailable: nothing answers.
            Rejected: it is no broker that serves event topics.
        """
        address = f"{host}:{port}"
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _CONNECT_SECONDS)
        except (TimeoutError, OSError) as error:
            raise Unavailable(f"no broker answers at {address}: {error}", ErrorCode.NETWORK_EXCEPTION) from error
        link = cls(address, reader, writer)
        try:
            request = ApiVersionsRequest(client_software_name=_SOFTWARE, client_software_version="1")
            answer = await link.call(request, ApiVersionsResponse, 3, _CONNECT_SECONDS)
        except BaseException:
            link.close()
            raise
        link.versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        return link

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
        self._writer.writelines([sum(map(len, parts)).to_bytes(4, "big"), *parts])
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

    async def _receive(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                if not 4 <= size <= FRAME_BYTES_MAX:
                    raise ProtocolError(f"a frame of {size} bytes")
                frame = memoryview(await self._reader.readexactly(size))
                api_key, version, correlation_id, due = self._due.popleft()
                if int.from_bytes(frame[:4], "big") != correlation_id:
                    raise ProtocolError("an answer out of order")
                start = 5 if response_header_version(api_key, version) else 4
                response = decode_response(api_key, version, frame, start, len(frame))
                if not due.done():
                    due.set_result(response)
        except (OSError, EOFError, IndexError, ProtocolError) as error:
            self._fail(Unavailable(f"lost the broker at {self.address}: {error}", ErrorCode.NETWORK_EXCEPTION))

    def _fail(self, error: MillstreamError) -> None:
        if self._failed is None:
            self._failed = error
            self._receiving.cancel()
            with suppress(Exception):
                self._writer.close()
        while self._due:
            due = self._due.popleft()[3]
            if not due.done():
                due.set_exception(error)
                due.exception()  # retrieved here: the caller may have stopped waiting


def encode_vectored(request: Request, version: int, head: bytes) -> list[bytes | bytearray | memoryview]:
    """A request as buffers; batches are passed through."""
    return encode_response_vectored(request, version, head)  # pyright: ignore[reportArgumentType]
