"""Quotas of clients on one shard: what requests use is recorded, and clients over their quota are throttled.

::

    request ─► handler ─► answer ─► charge ──within──► sent
                                      └──over──► sent with throttle_time_ms, connection muted for that time

| Quota | What counts | When |
|---|---|---|
| ``producer_byte_rate`` | bytes of requests with records (``served.Served.quota``) | when they are answered |
| ``consumer_byte_rate`` | bytes of records and events in answers | before a Fetch is answered: over it, it is empty |
| | bytes of records in answers of ShareFetch | when they are answered: over it, it acquires nothing |
| ``request_percentage`` | CPU time that decodes and handles requests; 100 is one core | when the next one is answered |
| ``controller_mutation_rate`` | partitions created and deleted (``core.quota.mutations``) | by the controller |

As in Kafka the answer leaves first, and the client is not read afterwards (``net.muting``). A Fetch over the quota is
answered without data, and its session stays as it was. A client that has used nothing for a while gets its first answer
of any size, or a batch larger than the quota could never be read.

A ShareFetch is different, because each delivery counts, and acknowledgements come over the same connection. What it
has acquired is always sent (Kafka drops it, and the records stay locked), and its client is muted for a part of the
lock duration at most; the rest of the wait is the next one's, which acquires nothing.

Not limited: the broker's own user (its socket file), logins, and ApiVersions, which has its throttle time where it
cannot be filled in.

Quotas are the broker's: ``core.quota.usage`` says how shards share them, and how large the error is. Each shard tells
the others ``TELL_US`` after something was recorded. While the cluster has no quota of clients, nothing here runs: the
dispatcher makes other contexts, and the intake calls other functions, as soon as there is one. Crash: a broker that
starts has forgotten what was used.
"""

from collections.abc import Callable
from time import thread_time_ns
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.cluster.metadata import MetadataListener, Steps
from millstream.core.quota.limits import CLIENT_KINDS, CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, Bound
from millstream.core.quota.usage import Usage, Used
from millstream.kafka.logins.gate import Gate
from millstream.kafka.metered import Charges, metered
from millstream.kafka.served import API_VERSIONS_KEY, SERVED
from millstream.model.principal import SOCKET_FILE
from millstream.net.muting import Muting

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache
    from millstream.config.settings import Settings
    from millstream.iobuf import IoBuf
    from millstream.kafka.dispatch import Dispatcher
    from millstream.kafka.metered import MeteredContext
    from millstream.net.connection import Connection
    from millstream.net.intake import Intake
    from millstream.shard.context import Shard
    from millstream.shard.mailbox import Reply

QUOTA_USED: Final = 81
"""Method of the mailbox: what another shard has recorded."""
TELL_US: Final = 50_000
_TOLD_AT_ONCE: Final = 200
_EXPIRE_US: Final = 10_000_000
_CLIENTS_MAX: Final = 10_000
_LOCK_PART: Final = 3
"""A member of a share group is muted for this part of the time that it holds records, at most."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Used]).decode

Bounds = dict[str, Bound]
"""What holds for a client, by kind."""


class Quotas(MetadataListener, Charges):
    """The quotas of one shard. Lifecycle: made with the shard's edge. Shard: its own."""

    def __init__(self, shard: "Shard", settings: "Settings", metadata: "MetadataCache") -> None:
        self._shard = shard
        self._metadata = metadata
        self._window_us = settings.quota_window_size_seconds * 1_000_000
        self._windows = settings.quota_window_num
        self._usage = Usage(settings.quota_window_num, self._window_us)
        self._muting = Muting(shard.reactor, shard.stats.gauge("quota_muted_connections"))
        self._bounds: dict[tuple[str, str | None], Bounds] = {}
        self._tells = self._expires = False
        self._throttled = {kind: shard.stats.histogram("kafka_throttle_time", quota=kind) for kind in CLIENT_KINDS}
        self._sharers = shard.stats.gauge("quota_sharers")
        self._switch: Callable[[], None] = _nothing
        shard.mailbox.serve(QUOTA_USED, self._serve_used)
        metadata.subscribe(self)

    def attach(self, dispatcher: "Dispatcher", intake: "Intake") -> None:
        """Meter the requests of this dispatcher as soon as there are quotas."""
        plain, counted = dispatcher.context, metered(dispatcher.context, self)
        on_frame, on_chain = intake.on_frame, intake.on_chain

        def clocked_frame(connection: "Connection", frame: memoryview) -> bool | None:
            began_ns = thread_time_ns()
            again = on_frame(connection, frame)
            self._clock(connection, thread_time_ns() - began_ns)
            return again

        def clocked_chain(connection: "Connection", chain: "IoBuf") -> bool | None:
            began_ns = thread_time_ns()
            again = on_chain(connection, chain)
            self._clock(connection, thread_time_ns() - began_ns)
            return again

        def switch() -> None:
            limits = self._metadata.state.security.limits
            clocks = limits.has(REQUEST_PERCENTAGE)
            dispatcher.context = counted if limits.limits_clients() else plain
            intake.on_frame = clocked_frame if clocks else on_frame
            intake.on_chain = clocked_chain if clocks else on_chain

        self._switch = switch
        switch()

    def quotas_changed(self) -> Steps:
        """Some quota changed: nothing that was looked up holds any longer."""
        self._bounds.clear()
        self._switch()
        if not self._metadata.state.security.limits.limits_clients():
            self._usage.clear()
            self._sharers.set(0)
        return None

    # Who is limited

    def _bounds_of(self, connection: "Connection") -> Bounds:
        """The quotas of a client."""
        gate = connection.client.gate
        if isinstance(gate, Gate) and not gate.is_open:
            return _UNLIMITED
        key = (connection.client.principal, connection.client.id)
        bounds = self._bounds.get(key)
        if bounds is None:
            if len(self._bounds) >= _CLIENTS_MAX:
                self._bounds.clear()
            bounds = self._bounds[key] = self._look_up(*key)
        return bounds

    def _look_up(self, principal: str, client_id: str | None) -> Bounds:
        if principal == SOCKET_FILE:
            return _UNLIMITED
        limits = self._metadata.state.security.limits
        found = {kind: limits.bound(kind, user_of(principal), client_id or "") for kind in CLIENT_KINDS}
        return {kind: bound for kind, bound in found.items() if bound is not None}

    # What is used

    def charge(self, context: "MeteredContext", answer_bytes: int) -> int:
        """Record what a request has used; returns how long its client is throttled, in µs."""
        bounds = self._bounds_of(context.connection)
        if not bounds and not context.wait_us:
            return 0
        kind = SERVED[context.api_key].quota
        if kind == PRODUCER_BYTE_RATE:
            context.wait_us = max(context.wait_us, self._record(kind, bounds, context.request_bytes))
        elif kind == CONSUMER_BYTE_RATE and not context.counted:
            context.wait_us = max(context.wait_us, self._record(kind, bounds, answer_bytes))
        if context.api_key != API_VERSIONS_KEY:
            context.wait_us = max(context.wait_us, self._cpu_wait_us(bounds))
        if context.wait_max_us:
            context.wait_us = min(context.wait_us, context.wait_max_us)
        return context.wait_us

    def charge_fetch(self, context: "MeteredContext", size: int) -> bool:
        """Record a Fetch that is about to be answered with ``size`` bytes. True: its answer must be empty."""
        bounds = self._bounds_of(context.connection)
        context.counted = True
        bound = bounds.get(CONSUMER_BYTE_RATE)
        now_us = self._shard.reactor.now_us()
        cpu_us = self._cpu_wait_us(bounds)
        if bound is None or not size:
            context.wait_us = cpu_us
            return cpu_us > 0
        wait_us = self._usage.would_wait(CONSUMER_BYTE_RATE, bound, size, now_us)
        if wait_us:
            self._note(CONSUMER_BYTE_RATE, wait_us)
        elif not cpu_us:
            wait_us = self._record(CONSUMER_BYTE_RATE, bounds, size)
            context.wait_us = wait_us
            return False
        context.wait_us = max(wait_us, cpu_us)
        return True

    def fetch_room(self, context: "MeteredContext", room_bytes: int) -> int:
        """Bytes that a Fetch may have: no more than the quota allows in all windows."""
        bound = self._bounds_of(context.connection).get(CONSUMER_BYTE_RATE)
        if bound is None:
            return room_bytes
        return min(room_bytes, int(bound.value * max(1, self._windows - 1) * self._window_us / 1e6))

    def may_take(self, context: "MeteredContext", lock_us: int) -> bool:
        """Whether a ShareFetch may acquire records: its client is within its quota."""
        context.wait_max_us = max(1, lock_us // _LOCK_PART)
        bound = self._bounds_of(context.connection).get(CONSUMER_BYTE_RATE)
        return bound is None or not self._usage.waits(CONSUMER_BYTE_RATE, bound, self._shard.reactor.now_us())

    def note_mutations(self, wait_us: int) -> None:
        """The controller throttles a client."""
        self._note("controller_mutation_rate", wait_us)

    def mute(self, connection: "Connection", for_us: int) -> None:
        """Read nothing of a client for a while."""
        self._muting.mute(connection, self._shard.reactor.now_us() + for_us)

    def _record(self, kind: str, bounds: Bounds, amount: float) -> int:
        bound = bounds.get(kind)
        if bound is None or not amount:
            return 0
        wait_us = self._usage.record(kind, bound, amount, self._shard.reactor.now_us())
        if wait_us:
            self._note(kind, wait_us)
        self._recorded()
        return wait_us

    def _cpu_wait_us(self, bounds: Bounds) -> int:
        """How long the client waits by the CPU time that it has used; a window at most, as in Kafka."""
        bound = bounds.get(REQUEST_PERCENTAGE)
        if bound is None:
            return 0
        wait_us = min(self._window_us, self._usage.waits(REQUEST_PERCENTAGE, bound, self._shard.reactor.now_us()))
        if wait_us:
            self._note(REQUEST_PERCENTAGE, wait_us)
        return wait_us

    def _clock(self, connection: "Connection", spent_ns: int) -> None:
        bound = self._bounds_of(connection).get(REQUEST_PERCENTAGE)
        if bound is not None:
            self._usage.record(REQUEST_PERCENTAGE, bound, spent_ns / 1e7, self._shard.reactor.now_us())
            self._recorded()

    def _note(self, kind: str, wait_us: int) -> None:
        self._throttled[kind].observe(wait_us)

    # Other shards

    def _recorded(self) -> None:
        self._sharers.set(len(self._usage))
        if not self._expires:
            self._expires = True
            self._shard.reactor.call_later(_EXPIRE_US, self._expire)
        if self._shard.count == 1:
            self._usage.drop_unsent()
        elif not self._tells:
            self._tells = True
            self._shard.reactor.call_later(TELL_US, self._tell)

    def _tell(self) -> None:
        used = self._usage.take_unsent(_TOLD_AT_ONCE)
        self._tells = bool(used)
        if not used:
            return
        payload = _encode(used)
        for shard in range(self._shard.count):
            if shard != self._shard.id:
                self._shard.mailbox.tell(shard, QUOTA_USED, payload)
        self._shard.reactor.call_later(TELL_US, self._tell)

    def _serve_used(self, sender: int, payload: bytes, reply: "Reply") -> None:
        _ = sender, reply
        if not self._metadata.state.security.limits.limits_clients():
            return
        now_us = self._shard.reactor.now_us()
        for used in _decode(payload):
            self._usage.heard(used, now_us)
        self._sharers.set(len(self._usage))
        if not self._expires:
            self._expires = True
            self._shard.reactor.call_later(_EXPIRE_US, self._expire)

    def _expire(self) -> None:
        self._usage.expire(self._shard.reactor.now_us())
        self._sharers.set(len(self._usage))
        self._expires = len(self._usage) > 0
        if self._expires:
            self._shard.reactor.call_later(_EXPIRE_US, self._expire)


_UNLIMITED: Final[Bounds] = {}


def user_of(principal: str) -> str:
    """The name of a user, as quotas have it."""
    return principal.partition(":")[2]


def _nothing() -> None:
    """No dispatcher is attached."""
