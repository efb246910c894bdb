"""What a handler may see: the node it runs on and the request it answers.

A ``RequestContext`` is the request's place in its connection's order of answers (``net.connection.Exchange``) plus
what the header said. A handler answers exactly once, now or later, on the same shard:

- ``respond(message)``: the usual way; encodes for the request's version;
- ``respond_encoded(body)``: a body that another shard encoded already;
- ``respond_around(before, shared, after)``: a body whose middle other answers contain too;
- ``respond_vectored(message, holder)``: a fetch, whose views must stay until they are sent;
- ``respond_packed(buffers, holder)``: the same, encoded by the handler, which looks at ``merge`` first;
- ``respond_nothing()``: a produce with acks=0.

``body`` is borrowed from the receive buffer: it is overwritten after ``handle`` has returned.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millstream.iobuf.outbox import Buffer, Holder
from millstream.model.quantities import ApiVersion
from millstream.net.connection import Connection, Exchange
from millstream.net.shared import Shared
from millstream.telemetry.log import RateLimit, log
from millstream.wire.codec import decode_response, encode_message, encode_response_vectored
from millstream.wire.errors import EncodeError
from millstream.wire.schema import Response

if TYPE_CHECKING:
    from millstream.cluster.client import ControllerClient
    from millstream.cluster.metadata import MetadataCache
    from millstream.cluster.producer_ids import ProducerIds
    from millstream.cluster.transfers import Transfers
    from millstream.config.settings import Settings
    from millstream.coordinator.end_offsets import EndOffsets
    from millstream.coordinator.finding import Coordinators
    from millstream.coordinator.router import GroupRouter
    from millstream.coordinator.share_states import ShareStates
    from millstream.coordinator.streams_topics import StreamsTopics
    from millstream.coordinator.transactions import Transactions
    from millstream.core.fetch_session import FetchSessions
    from millstream.core.quota.mutations import MutationClient
    from millstream.kafka.access import Access
    from millstream.kafka.acknowledgements import Acknowledgements
    from millstream.kafka.api import Api
    from millstream.kafka.loggers import Loggers
    from millstream.kafka.rights import Asker, Merge
    from millstream.kafka.telemetry import Telemetry
    from millstream.partition.append.admission import Admission
    from millstream.partition.append.timeouts import AckTimeouts
    from millstream.partition.events.home import EventsHome
    from millstream.partition.hop.admin import AdminHome
    from millstream.partition.hop.home import Home
    from millstream.partition.meters import Meters
    from millstream.partition.table import PartitionTable
    from millstream.shard.context import Shard
    from millstream.share.home import SharePartitions
    from millstream.share.sessions import ShareSessions
    from millstream.storage.shard_storage import ShardStorage

_FAULTS: Final = RateLimit(per_minute=6)
_PREFIX: Final = struct.Struct(">ii")
_HEAD: Final = bytes(8)
_TAGGED_HEAD: Final = bytes(9)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """One shard's view of the broker, handed to every handler.

    Lifecycle: made by ``app.shard_main`` before the first connection is taken.
    Shard: one each.
    """

    access: "Access | None"
    """Who may do what; None where access is not controlled."""
    shard: "Shard"
    settings: "Settings"
    metadata: "MetadataCache"
    controller: "ControllerClient"
    partitions: "PartitionTable"
    home: "Home"
    admin_home: "AdminHome"
    loggers: "Loggers"
    telemetry: "Telemetry"
    admission: "Admission"
    events: "EventsHome"
    acknowledgements: "Acknowledgements"
    meters: "Meters"
    coordinator: "GroupRouter"
    coordinators: "Coordinators"
    end_offsets: "EndOffsets"
    producer_ids: "ProducerIds"
    transactions: "Transactions"
    streams_topics: "StreamsTopics"
    share_states: "ShareStates"
    share_partitions: "SharePartitions"
    share_sessions: "ShareSessions"
    fetch_sessions: "FetchSessions"
    ack_timeouts: "AckTimeouts"
    storage: "ShardStorage"
    transfers: "Transfers | None"
    """Moves leaderships; None on a single broker."""


class RequestContext(Exchange):
    """One request: what its header said, who sent it, and the one answer it will get."""

    __slots__ = ("_body_at", "_frame", "api", "api_version", "correlation_id", "received_us")

    asker: "Asker | None" = None
    """Asks for the client's rights; None where access is not controlled."""
    merge: "Merge | None" = None
    """Makes the response that the client gets of the handler's; None if that is the same."""

    def __init__(
        self,
        connection: Connection,
        api: "Api",
        api_version: ApiVersion,
        correlation_id: int,
        frame: memoryview,
        body_at: int,
    ) -> None:
        super().__init__(connection)
        self.api = api
        self.api_version = api_version
        self.correlation_id = correlation_id
        self._frame = frame
        self._body_at = body_at
        self.received_us = connection.received_us

    @property
    def body(self) -> memoryview:
        """The request after its header; of a chain, what its first fragment holds of it."""
        return self._frame[self._body_at :]

    def forget(self) -> None:
        """Release the request's bytes: it was handled, and waits for its response."""
        self._frame = memoryview(b"")

    @property
    def api_key(self) -> int:
        return self.api.key

    @property
    def client_id(self) -> str | None:
        return self.connection.client.id

    @property
    def host(self) -> str:
        """Address of the client."""
        return self.connection.client.host

    @property
    def port(self) -> int:
        return self.connection.client.port

    @property
    def local_host(self) -> str:
        """Address that the client connected to."""
        return self.connection.client.local_host

    @property
    def local_port(self) -> int:
        return self.connection.client.local_port

    @property
    def listener(self) -> str:
        return self.connection.client.listener

    @property
    def principal(self) -> str:
        """Who the client is (``model.principal``); the anonymous one if its listener asks for no proof."""
        return self.connection.client.principal

    def respond(self, message: Response) -> None:
        """Answer with ``message``."""
        try:
            frame = self.encode(message)
        except EncodeError:
            self._fail()
        else:
            self.respond_frame(frame)

    def _fail(self) -> None:
        """The answer cannot be encoded, which is a fault of ours: it costs this client its connection, nothing more."""
        if _FAULTS.allows():
            what = f"{self.api.name} version {self.api_version} of {self.connection.client}"
            log.exception("the answer to %s cannot be sent; its connection is closed%s", what, _FAULTS.left_out())
        self.connection.close()
        self.respond_nothing()

    def respond_encoded(self, body: bytes | bytearray | memoryview) -> None:
        """Answer with a body that is encoded for this request's version; it is copied."""
        out = bytearray(self.head())
        out += body
        _PREFIX.pack_into(out, 0, len(out) - 4, self.correlation_id)
        self.respond_frame(out)

    def respond_around(self, before: bytes | memoryview, shared: Shared, after: bytes | memoryview) -> None:
        """Answer with an encoded body of three pieces; the one in the middle is not copied."""
        out = bytearray(self.head())
        out += before
        size = len(out) + len(shared.data) + len(after)
        _PREFIX.pack_into(out, 0, size - 4, self.correlation_id)
        self.api.answered(self.received_us)
        shared.lend()
        self.complete((out, shared.data, after), size, shared)

    def encode(self, message: Response) -> bytearray:
        """The whole frame of an answer: length, header, body."""
        out = encode_message(message, self.api_version, bytearray(self.head()))
        _PREFIX.pack_into(out, 0, len(out) - 4, self.correlation_id)
        return out

    def respond_frame(self, frame: bytes | bytearray) -> None:
        """Answer with a frame that is complete."""
        self.api.answered(self.received_us)
        self.complete((frame,), len(frame))

    def respond_vectored(self, message: Response, holder: Holder | None) -> None:
        """Answer with a message whose record batches are sent from where they are; ``holder`` is released then."""
        try:
            buffers = encode_response_vectored(message, self.api_version, self.head())
        except EncodeError:
            if holder is not None:
                holder.release()
            self._fail()
        else:
            self.respond_packed(buffers, holder)

    def respond_packed(self, buffers: Sequence[Buffer], holder: Holder | None) -> None:
        """Answer with an encoded message, whose first buffer is a bytearray that starts with ``head()``."""
        size = 0
        for buffer in buffers:
            size += len(buffer)
        first = buffers[0]
        assert isinstance(first, bytearray)
        _PREFIX.pack_into(first, 0, size - 4, self.correlation_id)
        self.api.answered(self.received_us)
        self.complete(buffers, size, holder)

    def head(self) -> bytes:
        """Room for the length prefix and the response header."""
        return _TAGGED_HEAD if self.api_version >= self.api.tagged_header_from else _HEAD

    def charge_fetch(self, size: int) -> bool:
        """Count an answer with ``size`` bytes of records against the client's quota. True: it must be empty."""
        _ = size
        return False

    def fetch_room(self, room_bytes: int) -> int:
        """The bytes that an answer may have by the client's quota, ``room_bytes`` at most."""
        return room_bytes

    def may_take(self, lock_us: int) -> bool:
        """Whether a ShareFetch may acquire records now by the client's quota; ``lock_us`` is how long it holds them."""
        _ = lock_us
        return True

    def mutation_client(self, strict_from: ApiVersion) -> "MutationClient | None":
        """Whose quota of changes the request counts against. From version ``strict_from`` on it may be refused."""
        _ = strict_from

    def throttle(self, wait_ms: int) -> None:
        """The controller says how long the client has to wait."""

    def respond_nothing(self) -> None:
        """End the request without a response, as acks=0 asks."""
        self.api.answered(self.received_us)
        self.complete(None, 0)


class GuardedContext(RequestContext):
    """A request where access is controlled.

    A body that was encoded piece by piece is decoded for that, which costs as much again: only requests with refused
    elements, or that ask for authorised operations, have a ``merge``.
    """

    __slots__ = ("asker", "merge")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asker: Asker | None = None
        self.merge: Merge | None = None

    def respond(self, message: Response) -> None:
        super().respond(message if self.merge is None else self.merge(message))

    def respond_vectored(self, message: Response, holder: Holder | None) -> None:
        super().respond_vectored(message if self.merge is None else self.merge(message), holder)

    def respond_encoded(self, body: bytes | bytearray | memoryview) -> None:
        if self.merge is None:
            super().respond_encoded(body)
        else:
            self._respond_decoded(bytes(body))

    def respond_around(self, before: bytes | memoryview, shared: Shared, after: bytes | memoryview) -> None:
        if self.merge is None:
            super().respond_around(before, shared, after)
        else:
            self._respond_decoded(b"".join((before, shared.data, after)))

    def _respond_decoded(self, body: bytes) -> None:
        view = memoryview(body)
        message = decode_response(self.api_key, self.api_version, view, 0, len(view))
        assert isinstance(message, Response)
        self.respond(message)
