"""Contexts of requests while quotas exist: they charge their client when they are answered (``kafka.quotas``)."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from millstream.core.quota.mutations import MutationClient
from millstream.iobuf.outbox import Buffer, Holder
from millstream.kafka.context import RequestContext
from millstream.kafka.served import API_VERSIONS_KEY, PRODUCE
from millstream.model.principal import SOCKET_FILE
from millstream.model.quantities import ApiKey, ApiVersion
from millstream.wire.apis import APIS
from millstream.wire.codec import encode_message

if TYPE_CHECKING:
    from millstream.net.connection import Connection

_MARK: Final = 0x5A5A5A5A
_MARK_BYTES: Final = _MARK.to_bytes(4, "big")
_FIELD: Final = "throttle_time_ms"


class Charges:
    """What a context asks of ``kafka.quotas.Quotas``."""

    def charge(self, context: "MeteredContext", answer_bytes: int) -> int:
        raise NotImplementedError

    def charge_fetch(self, context: "MeteredContext", size: int) -> bool:
        raise NotImplementedError

    def fetch_room(self, context: "MeteredContext", room_bytes: int) -> int:
        raise NotImplementedError

    def may_take(self, context: "MeteredContext", lock_us: int) -> bool:
        raise NotImplementedError

    def note_mutations(self, wait_us: int) -> None:
        raise NotImplementedError

    def mute(self, connection: "Connection", for_us: int) -> None:
        raise NotImplementedError


class MeteredContext(RequestContext):
    """What ``Charges`` sees of a request."""

    __slots__ = ()

    request_bytes: int
    """Size of the request."""
    wait_us: int
    """How long the client waits by what is known so far."""
    counted: bool
    """Whether the bytes of the answer are recorded."""
    wait_max_us: int
    """How long the client is muted at most after this request; 0: for as long as it waits."""


def metered(plain: type[RequestContext], quotas: Charges) -> type[RequestContext]:
    """The class of contexts like ``plain`` whose requests are charged to ``quotas``."""

    class Metered(plain):
        __slots__ = ("counted", "request_bytes", "wait_max_us", "wait_us")

        def __init__(self, connection: "Connection", *arguments: Any) -> None:
            super().__init__(connection, *arguments)
            self.request_bytes = len(self._frame) if connection.frame is None else connection.frame.size
            self.wait_us = 0
            self.counted = False
            self.wait_max_us = 0

        def charge_fetch(self, size: int) -> bool:
            return quotas.charge_fetch(self, size)  # type: ignore[arg-type]

        def fetch_room(self, room_bytes: int) -> int:
            return quotas.fetch_room(self, room_bytes)  # type: ignore[arg-type]

        def may_take(self, lock_us: int) -> bool:
            return quotas.may_take(self, lock_us)  # type: ignore[arg-type]

        def mutation_client(self, strict_from: ApiVersion) -> MutationClient | None:
            principal = self.connection.client.principal
            if principal == SOCKET_FILE:
                return None
            user = principal.partition(":")[2]
            return MutationClient(user, self.client_id or "", self.api_version >= strict_from)

        def throttle(self, wait_ms: int) -> None:
            if wait_ms > 0:
                self.wait_us = max(self.wait_us, wait_ms * 1000)
                quotas.note_mutations(wait_ms * 1000)

        def complete(self, buffers: Sequence[Buffer] | None, size: int, holder: Holder | None = None) -> None:
            wait_us = quotas.charge(self, size)  # type: ignore[arg-type]
            if wait_us and buffers is not None:
                buffers = _with_throttle_time(self, buffers, -(-wait_us // 1000))
            super().complete(buffers, size, holder)
            if wait_us:
                quotas.mute(self.connection, wait_us)

    return Metered


def _with_throttle_time(ctx: RequestContext, buffers: Sequence[Buffer], wait_ms: int) -> Sequence[Buffer]:
    """The answer with its throttle time filled in, if its version has one."""
    place = throttle_place(ctx.api_key, ctx.api_version)
    if place is None:
        return buffers
    first = bytearray(buffers[0])
    head = 9 if ctx.api_version >= ctx.api.tagged_header_from else 8
    at = head + place if place >= 0 else len(first) + place
    first[at : at + 4] = wait_ms.to_bytes(4, "big")
    return [first, *buffers[1:]]


@cache
def throttle_place(api_key: ApiKey, version: ApiVersion) -> int | None:
    """Where the throttle time stands in an encoded response: from its start, or negative from its end (Produce, whose
    results come first). None where a version has none, and for ApiVersions, where its place varies.
    """
    response = APIS[api_key].response
    if _FIELD not in response.__struct_fields__ or api_key == API_VERSIONS_KEY:
        return None
    encoded = bytes(encode_message(response(**{_FIELD: _MARK}), version, bytearray()))
    place = encoded.find(_MARK_BYTES)
    if place < 0:
        return None
    return place - len(encoded) if api_key == PRODUCE else place
