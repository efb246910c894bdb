"""Client metrics subscriptions: which clients push which metrics, and how often (KIP-714).

A subscription is a resource with three properties. ``match`` is a list of ``attribute=expression``; a client matches if
each named attribute matches its expression as a whole. The expressions use RE2's syntax, so that none can stall a
shard. Java's look-around and back references are refused as invalid. Texts and codes of the errors are Kafka's.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from millstream.config.forms import INT32_MAX, TYPE_LIST, Form, Integer
from millstream.config.property import Property, declared
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INTERVAL_MIN_MS: Final = 100
INTERVAL_MAX_MS: Final = 3_600_000

EXPRESSION_LENGTH_MAX: Final = 1_024
EXPRESSION_MEMORY_BYTES: Final = 1 << 20

ATTRIBUTES: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


class Words(Form["tuple[str, ...]"]):
    """A comma-separated list of words, none of them empty. An empty text is the empty list."""

    kafka_type = TYPE_LIST

    def read_plain(self, text: str) -> tuple[str, ...]:
        if not text.strip():
            return ()
        found = tuple(word.strip() for word in text.split(","))
        if not all(found):
            raise ValueError
        return found

    def accepts(self, value: object) -> bool:
        return isinstance(value, tuple) and all(isinstance(word, str) and word for word in value)

    def write(self, value: tuple[str, ...]) -> str:
        return ",".join(value)

    def expected(self) -> str:
        return "a comma-separated list without empty words"


class ClientMetrics:
    """The properties of a subscription."""

    metrics = Property(
        "metrics",
        Words(),
        (),
        doc="Prefixes of the names of the wanted metrics, such as org.apache.kafka.producer.; * is every metric.",
    )
    interval_ms = Property(
        "interval.ms", Integer(-INT32_MAX - 1, unit=""), 300_000, doc="Interval between two pushes of a client, in ms."
    )
    match = Property(
        "match",
        Words(),
        (),
        doc="Clients that the subscription applies to, such as client_id=app-.*,client_software_name=librdkafka. "
        "Empty is every client.",
    )


CLIENT_METRICS: Final[Mapping[str, Property[Any]]] = MappingProxyType(declared(ClientMetrics))
"""Every property of a subscription, by name."""


def check_client_metrics(configs: Mapping[str, str]) -> None:
    """Raise Rejected if ``configs`` are not valid for a subscription."""
    for name, text in configs.items():
        declaration = CLIENT_METRICS.get(name)
        if declaration is None:
            raise Rejected(f"Unknown client metrics configuration: {name}", ErrorCode.INVALID_REQUEST)
        value = declaration.read(text, plain=True)
        if declaration is ClientMetrics.interval_ms and not INTERVAL_MIN_MS <= value <= INTERVAL_MAX_MS:
            raise Rejected(
                f"Invalid value {text} for interval.ms, interval must be between {INTERVAL_MIN_MS} and "
                f"{INTERVAL_MAX_MS} (1 hour)",
                ErrorCode.INVALID_REQUEST,
            )
        if declaration is ClientMetrics.match:
            patterns(value)


def patterns(match: tuple[str, ...]) -> dict[str, Callable[[str], object]]:
    """A matching function for each attribute in ``match``. Rejected if an expression is invalid."""
    return dict(map(_pattern, match))


def _pattern(text: str) -> tuple[str, Callable[[str], object]]:
    import re2  # pyright: ignore[reportMissingTypeStubs]

    attribute, _, expression = (part.strip() for part in text.partition("="))
    options: Any = re2.Options()
    options.log_errors = False
    options.max_mem = EXPRESSION_MEMORY_BYTES
    try:
        if attribute not in ATTRIBUTES or not 0 < len(expression) <= EXPRESSION_LENGTH_MAX:
            raise ValueError
        return attribute, re2.compile(expression, options).fullmatch
    except (ValueError, re2.error):
        raise Rejected(f"Illegal client matching pattern: {text}", ErrorCode.INVALID_CONFIG) from None
