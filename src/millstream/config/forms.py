"""Forms: how the text of a setting becomes a value, and the reverse.

A form describes one kind of value: its Kafka type number (shown by DescribeConfigs), how to read it, how to write it in
Kafka's spelling, and what it expects. People write ``512MiB`` or ``7d``; Kafka's clients write plain numbers. ``read``
accepts both. ``read_plain`` accepts only what Apache Kafka accepts, so that stored topic configurations are always in
Kafka's spelling. Both raise ``ValueError`` without a message; the property that owns the form composes the sentence.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308

# Kafka's ConfigResource type numbers (DescribeConfigs, ConfigType).
TYPE_BOOLEAN, TYPE_STRING, TYPE_INT, TYPE_SHORT, TYPE_LONG, TYPE_DOUBLE, TYPE_LIST = 1, 2, 3, 4, 5, 6, 7

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_TIME_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_UNIT_US = {"µs": 1, "ms": 1_000, "minutes": 60_000_000, "hours": 3_600_000_000}


class Form(Generic[T]):
    """One kind of value. Subclasses implement ``read_plain`` and ``expected``."""

    kafka_type = TYPE_STRING
    unit = ""

    def read(self, text: str) -> T:
        """The value that a person wrote. Suffixes of size and time are accepted."""
        return self.read_plain(text)

    def read_plain(self, text: str) -> T:
        """The value in Kafka's own spelling."""
        raise NotImplementedError

    def accepts(self, value: object) -> bool:
        """Whether a Python value (from a flag or a test) is valid for this form."""
        raise NotImplementedError

    def write(self, value: T) -> str | None:
        """Kafka's spelling of ``value``; None where Kafka would show null."""
        return str(value)

    def shown(self, value: T) -> str:
        """``value`` for a person: as written, with its size or time in larger units."""
        return self.write(value) or ""

    def expected(self) -> str:
        """What is accepted, as a phrase to follow "expected"."""
        raise NotImplementedError


class Boolean(Form[bool]):
    """``true`` or ``false``."""

    kafka_type = TYPE_BOOLEAN

    def read_plain(self, text: str) -> bool:
        lowered = text.strip().lower()
        if lowered not in ("true", "false"):
            raise ValueError
        return lowered == "true"

    def accepts(self, value: object) -> bool:
        return isinstance(value, bool)

    def write(self, value: bool) -> str:
        return "true" if value else "false"

    def expected(self) -> str:
        return "true or false"


class Integer(Form[int]):
    """An integer within inclusive bounds: a count, bytes, or a unit of time. ``never`` is one value in between that is
    refused.
    """

    def __init__(self, low: int, high: int = INT32_MAX, *, unit: str = "", never: int | None = None) -> None:
        self.low = low
        self.high = high
        self.unit = unit
        self.never = never
        self.kafka_type = TYPE_INT if high <= INT32_MAX else TYPE_LONG

    def read(self, text: str) -> int:
        if self.unit == "bytes":
            return self._bounded(parse_size(text))
        if self.unit in _UNIT_US:
            return self._bounded(_parse_time(text, self.unit))
        return self.read_plain(text)

    def read_plain(self, text: str) -> int:
        stripped = text.strip()
        if not (stripped.isascii() and stripped.lstrip("+-").isdigit()):
            raise ValueError
        return self._bounded(int(stripped))

    def accepts(self, value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return value != self.never and self.low <= value <= self.high

    def shown(self, value: int) -> str:
        if self.unit == "bytes" and value >= 1024:
            return f"{value} ({human_size(value)})"
        if self.unit == "ms" and value >= 1000:
            return f"{value} ({human_duration_ms(value)})"
        return str(value)

    def expected(self) -> str:
        noun = {"bytes": "a size", "": "a whole number"}.get(self.unit, f"a time in {self.unit}")
        sample = {"bytes": ", such as 512MiB or 1GB", "ms": ", such as 30s or 7d"}.get(self.unit, "")
        unbounded = self.high in (INT32_MAX, INT64_MAX)
        if unbounded:
            return f"{noun} of at least {self._shown(self.low)}{sample}"
        but = "" if self.never is None else f", but not {self.never}"
        return f"{noun} from {self._shown(self.low)} to {self._shown(self.high)}{but}{sample}"

    def _bounded(self, value: int) -> int:
        if not self.low <= value <= self.high or value == self.never:
            raise ValueError
        return value

    def _shown(self, value: int) -> str:
        return human_size(value) if self.unit == "bytes" else str(value)


class Short(Integer):
    """An integer of 16 bits from ``low`` on, Kafka's SHORT."""

    def __init__(self, low: int) -> None:
        super().__init__(low, 2**15 - 1)
        self.kafka_type = TYPE_SHORT


class OptionalInteger(Form["int | None"]):
    """An integer that may be absent (Kafka's null). Absence is written as empty text."""

    def __init__(self, low: int, high: int = INT32_MAX, *, unit: str = "") -> None:
        self.inner = Integer(low, high, unit=unit)
        self.unit = unit
        self.kafka_type = self.inner.kafka_type

    def read(self, text: str) -> int | None:
        return self.inner.read(text) if text.strip() else None

    def read_plain(self, text: str) -> int | None:
        return self.inner.read_plain(text) if text.strip() else None

    def accepts(self, value: object) -> bool:
        return value is None or self.inner.accepts(value)

    def write(self, value: int | None) -> str | None:
        return None if value is None else str(value)

    def expected(self) -> str:
        return f"nothing, or {self.inner.expected()}"


class Number(Form[float]):
    """A number within inclusive bounds, fractions allowed. Written as Java writes a double."""

    kafka_type = TYPE_DOUBLE

    def __init__(self, low: float, high: float = DOUBLE_MAX) -> None:
        self.low = low
        self.high = high

    def read_plain(self, text: str) -> float:
        value = float(text)
        if not self.accepts(value):
            raise ValueError
        return value

    def accepts(self, value: object) -> bool:
        return isinstance(value, float) and self.low <= value <= self.high

    def write(self, value: float) -> str:
        if value and not 1e-3 <= abs(value) < 1e7:
            digits, exponent = Decimal(repr(value)).as_tuple()[1:]
            plain = "".join(map(str, digits)).rstrip("0")
            return f"{'-' * (value < 0)}{plain[0]}.{plain[1:] or '0'}E{len(digits) - 1 + int(exponent)}"
        return repr(value)

    def expected(self) -> str:
        if self.high == DOUBLE_MAX:
            return f"a number of at least {self.write(self.low)}"
        return f"a number from {self.write(self.low)} to {self.write(self.high)}"


class Only(Form[bool]):
    """``true`` or ``false``, where this version accepts one and refuses the other with a reason."""

    kafka_type = TYPE_BOOLEAN

    def __init__(self, value: bool, reason: str) -> None:
        self.value = value
        self.reason = reason

    def read_plain(self, text: str) -> bool:
        if Boolean().read_plain(text) is not self.value:
            raise UnsupportedValue(self.reason)
        return self.value

    def accepts(self, value: object) -> bool:
        return value is self.value

    def write(self, value: bool) -> str:
        return "true" if value else "false"

    def expected(self) -> str:
        return self.write(self.value)


class Text(Form[str]):
    """Any text. ``what`` names its meaning; ``required`` refuses empty text."""

    def __init__(self, what: str, *, required: bool = False) -> None:
        self.what = what
        self.required = required

    def read_plain(self, text: str) -> str:
        stripped = text.strip()
        if self.required and not stripped:
            raise ValueError
        return stripped

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and (bool(value) or not self.required)

    def write(self, value: str) -> str | None:
        return value or None

    def expected(self) -> str:
        return self.what


class Choice(Form[str]):
    """One of a closed set of words. ``refused`` are known words that this version does not accept, with the reason."""

    def __init__(self, *words: str, refused: dict[str, str] | None = None) -> None:
        self.words = words
        self._refused = refused or {}

    def read_plain(self, text: str) -> str:
        word = text.strip()
        if word in self._refused:
            raise UnsupportedValue(self._refused[word])
        if word not in self.words:
            raise ValueError
        return word

    def accepts(self, value: object) -> bool:
        return value in self.words

    def expected(self) -> str:
        return _one_of(self.words)


class Choices(Form["tuple[str, ...]"]):
    """A comma-separated list of distinct words of a closed set, at least one, kept in the order given.

    ``loose`` also accepts an empty list and repeated words, as Kafka does for some settings.
    """

    kafka_type = TYPE_LIST

    def __init__(self, *words: str, loose: bool = False) -> None:
        self.words = words
        self.loose = loose

    def read_plain(self, text: str) -> tuple[str, ...]:
        found = tuple(word.strip() for word in text.split(","))
        if self.loose:
            found = tuple(dict.fromkeys(found)) if text.strip() else ()
        if not self.accepts(found):
            raise ValueError
        return found

    def accepts(self, value: object) -> bool:
        if not isinstance(value, tuple) or not (value or self.loose):
            return False
        found: tuple[object, ...] = value
        return len(set(found)) == len(found) and all(word in self.words for word in found)

    def write(self, value: tuple[str, ...]) -> str:
        return ",".join(value)

    def expected(self) -> str:
        return f"a comma-separated list of {_one_of(self.words)}"


class Words(Form["tuple[str, ...]"]):
    """Words with commas or another separator; may be empty. Subclasses implement ``accepts_words`` and ``expected``."""

    kafka_type = TYPE_LIST
    separator = ","

    def accepts_words(self, words: tuple[str, ...]) -> bool:
        """Whether these words are valid for this form."""
        raise NotImplementedError

    def read_plain(self, text: str) -> tuple[str, ...]:
        found = self.split(text) if text.strip() else ()
        if not self.accepts(found):
            raise ValueError
        return found

    def split(self, text: str) -> tuple[str, ...]:
        """The words of a text that is not blank."""
        return tuple(word.strip() for word in text.split(self.separator))

    def accepts(self, value: object) -> bool:
        if not isinstance(value, tuple):
            return False
        words: tuple[object, ...] = value
        texts = tuple(word for word in words if isinstance(word, str))
        return len(texts) == len(words) and self.accepts_words(texts)

    def write(self, value: tuple[str, ...]) -> str | None:
        return self.separator.join(value)


class Endpoint(NamedTuple):
    """Address of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HostPort(Form[Endpoint]):
    """``HOST:PORT``, ``[IPv6]:PORT`` or Kafka's ``PLAINTEXT://HOST:PORT``."""

    def __init__(self, *, lowest_port: int = 0, scheme: str = "PLAINTEXT") -> None:
        self.lowest_port = lowest_port
        self.scheme = scheme

    def read_plain(self, text: str) -> Endpoint:
        scheme, separator, rest = text.strip().rpartition("://")
        if separator and scheme.lower() != self.scheme.lower():
            if scheme.upper() in ("SSL", "SASL_SSL", "SASL_PLAINTEXT"):
                raise UnsupportedValue("listeners with TLS or SASL are not supported by this version")
            raise ValueError
        endpoint = parse_endpoint(rest)
        if endpoint.port < self.lowest_port:
            raise ValueError
        return endpoint

    def accepts(self, value: object) -> bool:
        return isinstance(value, Endpoint)

    def write(self, value: Endpoint) -> str:
        return f"{self.scheme}://{value}"

    def expected(self) -> str:
        ports = "a port" if self.lowest_port else "a port (0 picks a free one)"
        return f"HOST:PORT with {ports}, such as 127.0.0.1:9092"


class OptionalHostPort(Form["Endpoint | None"]):
    """An endpoint that may be absent. Absence is written as empty text."""

    def __init__(self, *, lowest_port: int = 0, scheme: str = "PLAINTEXT") -> None:
        self.inner = HostPort(lowest_port=lowest_port, scheme=scheme)

    def read_plain(self, text: str) -> Endpoint | None:
        return self.inner.read_plain(text) if text.strip() else None

    def accepts(self, value: object) -> bool:
        return value is None or self.inner.accepts(value)

    def write(self, value: Endpoint | None) -> str | None:
        return None if value is None else self.inner.write(value)

    def expected(self) -> str:
        return f"nothing, or {self.inner.expected()}"


class UnsupportedValue(ValueError):
    """A value of Apache Kafka that this version refuses. The message is the reason."""


def parse_endpoint(text: str) -> Endpoint:
    """Read ``HOST:PORT`` or ``[IPv6]:PORT``. An empty host means every IPv4 interface."""
    host, separator, port = text.rpartition(":")
    if not separator or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or any(character.isspace() for character in host):
        raise ValueError
    else:
        host.encode("idna")  # UnicodeError, a ValueError: no resolver accepts this name
    return Endpoint(host or "0.0.0.0", int(port))  # noqa: S104 - Kafka's meaning of an empty host


def parse_size(text: str) -> int:
    """Bytes from ``1073741824``, ``512MiB`` or ``64k`` (powers of 1024), ``1GB`` (powers of 1000), or fractions such as
    ``1.5GiB``.
    """
    number, unit = _split_number(text)
    factor = _SIZE_UNITS.get(unit)
    if factor is None:
        raise ValueError
    return _scaled(number, factor)


def parse_duration_ms(text: str) -> int:
    """Milliseconds from ``1500``, ``1500ms``, ``30s``, ``5m``, ``12h`` or ``7d``."""
    return _parse_time(text, "ms")


def exact(number: float) -> str:
    """All digits of a number, without a fraction of zero."""
    return repr(float(number)).removesuffix(".0")


def human_size(value: int) -> str:
    """The shortest exact form of ``value`` bytes, or one decimal."""
    if abs(value) < 1024:
        return f"{value} B"
    amount = float(value)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if abs(amount) < 1024 or unit == "TiB":
            return f"{amount:.0f} {unit}" if amount == int(amount) else f"{amount:.1f} {unit}"
    raise AssertionError("the last unit always returns")


def human_duration_ms(value: int) -> str:
    """The shortest exact form of ``value`` milliseconds. The maximum means no limit."""
    if value == INT64_MAX:
        return "no limit"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if value % size == 0 and value >= size:
            return f"{value // size}{unit}"
    return f"{value}ms"


def _parse_time(text: str, plain_unit: str) -> int:
    number, suffix = _split_number(text)
    if not suffix:
        return _scaled(number, 1)
    if suffix not in _TIME_UNITS_US:
        raise ValueError
    whole, rest = divmod(_scaled(number, _TIME_UNITS_US[suffix]), _UNIT_US[plain_unit])
    if rest:
        raise ValueError
    return whole


def _split_number(text: str) -> tuple[str, str]:
    stripped = text.strip()
    end = 0
    while end < len(stripped) and stripped[end] in "+-.0123456789":
        end += 1
    return stripped[:end], stripped[end:].strip().lower()


def _scaled(number: str, factor: int) -> int:
    if "." not in number:
        return int(number) * factor
    whole, _, fraction = number.partition(".")
    if not (whole.isdecimal() and fraction.isdecimal()):
        raise ValueError
    value, rest = divmod(int(whole + fraction) * factor, 10 ** len(fraction))
    if rest:
        raise ValueError
    return value


def _one_of(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]
