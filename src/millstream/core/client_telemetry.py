"""Client telemetry: the metrics that clients shall push, and when they may (KIP-714).

::

    client                                        broker
    get(no id yet)                     ──►   an id, a subscription id, what is wanted, how often
    push(id, subscription id, metrics) ──►   taken | THROTTLING_QUOTA_EXCEEDED: too early
                                                   | UNKNOWN_SUBSCRIPTION_ID: subscriptions changed, get again
                                                   | UNSUPPORTED_COMPRESSION_TYPE | TELEMETRY_TOO_LARGE
    push(…, terminating)               ──►   taken at any time; then INVALID_REQUEST

A subscription id is a checksum of the wanted metrics and of the client's id, so it needs no memory: a client that
returns to another shard, or after a restart, is recognised by it. The time of a client's last request is kept, to
enforce the interval. ``INSTANCES_MAX`` bounds that; the client that was silent longest is dropped first. The order of
the checks, and that an error of the subscription allows an immediate new request, are Kafka's.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.config.client_metrics import ClientMetrics, patterns
from millstream.model.error_code import ErrorCode

INSTANCES_MAX: Final = 16_384
"""Maximum number of clients with state on one shard; Kafka's number for a broker."""

NO_INSTANCE: Final = bytes(16)
_RESERVED: Final = (NO_INSTANCE, bytes(15) + b"\1")
EVERY_METRIC: Final = "*"
COMPRESSIONS: Final = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy: best first, as Kafka lists them."""
_UNCOMPRESSED: Final = 0

_ASK_AGAIN: Final = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})

Attributes = Mapping[str, str]
"""Facts about a client, by the names of ``config.client_metrics.ATTRIBUTES``."""


class Subscription(NamedTuple):
    """One configured subscription."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Callable[[str], object]]

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> "Subscription":
        """The subscription with the valid properties ``configs``."""

        def value(name: str, default: str) -> str:
            return configs.get(name, default)

        return cls(
            ClientMetrics.metrics.read(value("metrics", ""), plain=True),
            int(
                ClientMetrics.interval_ms.read(value("interval.ms", str(ClientMetrics.interval_ms.default)), plain=True)
            ),
            patterns(ClientMetrics.match.read(value("match", ""), plain=True)),
        )

    def means(self, client: Attributes) -> bool:
        return all(matches(client.get(name, "")) for name, matches in self.match.items())


class Wanted(NamedTuple):
    """What one client shall push."""

    subscription_id: int
    metrics: tuple[str, ...]
    interval_ms: int


class _Instance:
    """One client since the last change of its subscriptions."""

    __slots__ = ("last_error", "last_get_ms", "last_push_ms", "terminating", "version", "wanted")

    def __init__(self, wanted: Wanted, version: int, terminating: bool) -> None:
        self.wanted = wanted
        self.version = version
        self.last_get_ms = self.last_push_ms = -(1 << 62)
        self.last_error = ErrorCode.NONE
        self.terminating = terminating


def id_text(instance_id: bytes) -> str:
    """A client's instance id in Kafka's notation: URL-safe base 64, 22 characters."""
    return base64.urlsafe_b64encode(instance_id).rstrip(b"=").decode()


class ClientTelemetry:
    """The clients of one shard. ``new_id`` returns an unused id; ``max_bytes`` bounds one push."""

    def __init__(self, new_id: Callable[[], bytes], max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._new_id = new_id
        self._subscriptions: tuple[Subscription, ...] = ()
        self._version = 0
        self._instances: dict[bytes, _Instance] = {}  # the one that was silent longest is first

    def subscribe(self, subscriptions: Iterable[Mapping[str, str]]) -> None:
        """Replace the subscriptions."""
        self._subscriptions = tuple(Subscription.of(configs) for configs in subscriptions)
        self._version += 1

    def get(self, now_ms: int, instance_id: bytes, client: Attributes) -> tuple[ErrorCode, bytes, Wanted | None]:
        """What the client shall push: (error, its id, wanted metrics)."""
        if instance_id == NO_INSTANCE:
            instance_id = self._new_id()
        instance = self._instance(instance_id, client)
        if now_ms - max(instance.last_get_ms, instance.last_push_ms) >= instance.wanted.interval_ms:
            instance.last_get_ms = now_ms
        elif instance.last_error not in _ASK_AGAIN:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED, NO_INSTANCE, None
        instance.last_error = ErrorCode.NONE
        return ErrorCode.NONE, instance_id, instance.wanted

    def push(
        self,
        now_ms: int,
        instance_id: bytes,
        client: Attributes,
        subscription_id: int,
        compression: int,
        size: int,
        *,
        terminating: bool,
    ) -> ErrorCode:
        """Whether ``size`` bytes of the client are accepted."""
        if instance_id in _RESERVED:
            return ErrorCode.INVALID_REQUEST
        instance = self._instance(instance_id, client)
        error = self._judged(instance, now_ms, subscription_id, compression, size, terminating=terminating)
        instance.terminating = terminating
        instance.last_error = error
        return error

    def _judged(
        self, instance: _Instance, now_ms: int, subscription_id: int, compression: int, size: int, *, terminating: bool
    ) -> ErrorCode:
        if instance.terminating:
            return ErrorCode.INVALID_REQUEST
        asked_since = instance.last_get_ms > instance.last_push_ms
        if asked_since or now_ms - instance.last_push_ms >= instance.wanted.interval_ms:
            instance.last_push_ms = now_ms
        elif not terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if subscription_id != instance.wanted.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if compression not in COMPRESSIONS and compression != _UNCOMPRESSED:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return ErrorCode.TELEMETRY_TOO_LARGE if size > self.max_bytes else ErrorCode.NONE

    def _instance(self, instance_id: bytes, client: Attributes) -> _Instance:
        """The client with this id, evaluated again if subscriptions have changed."""
        found = self._instances.pop(instance_id, None)
        if found is None or found.version < self._version:
            wanted = self._wanted(instance_id, client)
            found = _Instance(wanted, self._version, found is not None and found.terminating)
        while len(self._instances) >= INSTANCES_MAX:
            del self._instances[next(iter(self._instances))]
        self._instances[instance_id] = found
        return found

    def _wanted(self, instance_id: bytes, client: Attributes) -> Wanted:
        about = {**client, "client_instance_id": id_text(instance_id)}
        meant = [each for each in self._subscriptions if each.means(about)]
        names = {name for each in meant for name in each.metrics}
        metrics = (EVERY_METRIC,) if EVERY_METRIC in names else tuple(sorted(names))
        interval_ms = min((each.interval_ms for each in meant), default=ClientMetrics.interval_ms.default)
        checksum = crc32c(f"{metrics}{interval_ms}".encode(), crc32c(instance_id))
        return Wanted(checksum - (checksum >> 31 << 32), metrics, min(interval_ms, ClientMetrics.interval_ms.default))
