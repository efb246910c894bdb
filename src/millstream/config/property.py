"""A property: the one declaration of a setting.

A declaration has everything about a setting: its name (Kafka's if Kafka has the setting), its form (type, bounds,
unit), default, description, an example, whether it may change while the broker runs, whether it has an effect, and
whether it is for tests only.
Validation, ``millstream config list``, the reference page and DescribeConfigs all read these declarations.

A property is declared as a class attribute and is a (non-data) descriptor. On the class the attribute is the
declaration, on an instance it is the value::

    class Settings:
        num_partitions = Property("num.partitions", Integer(1), 1, doc="…")

    Settings.num_partitions.name      # "num.partitions"
    settings.num_partitions           # 1, typed int, a plain entry of the instance's dictionary

A bad value raises ``ConfigError`` naming the setting, the value and what was expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, overload

from millstream.config.errors import ConfigError
from millstream.config.forms import Form, UnsupportedValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

T = TypeVar("T")


class Default(Generic[T]):
    """The default of a setting: a value, or how it is computed from the machine (memory, cores)."""

    def __init__(self, value: T | None, compute: Callable[[], T] | None, doc: str) -> None:
        self._value = value
        self._compute = compute
        self.doc = doc
        """How it is computed, for a person."""

    def of(self, name: str, form: Form[T]) -> T:
        """The value for the setting ``name``."""
        if self._compute is not None:
            return self._compute()
        assert self._value is not None or form.accepts(None), f"{name} has no default"
        return self._value  # type: ignore[return-value]


class Property(Generic[T]):
    """The declaration of one setting, and the descriptor of its value."""

    field: str
    """The Python name, taken from the class attribute."""

    def __init__(
        self,
        name: str,
        form: Form[T],
        default: T | None = None,
        *,
        doc: str,
        compute: Callable[[], T] | None = None,
        default_doc: str = "",
        example: str = "",
        aliases: tuple[str, ...] = (),
        live: bool = False,
        hidden: bool = False,
        sensitive: bool = False,
        effect: bool = True,
        per_listener: bool = False,
    ) -> None:
        self.name = name
        self.form = form
        self.doc = doc
        self.example = example
        self.aliases = aliases
        self.live = live
        self.hidden = hidden
        self.sensitive = sensitive
        self.effect = effect
        self.per_listener = per_listener
        """Whether one listener may have another value (``listener.name.NAME.…``)."""
        self._default = Default(default, compute, default_doc)
        self.field = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.field = name

    @overload
    def __get__(self, instance: None, owner: type) -> Property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Property[T] | T:
        if instance is None:
            return self
        raise AttributeError(f"{owner.__name__}.{self.field} was never given a value")

    @property
    def default(self) -> T:
        """The default."""
        return self._default.of(self.name, self.form)

    def read(self, text: str, *, plain: bool = False) -> T:
        """The value written as ``text``. With ``plain``, only in Kafka's own spelling."""
        try:
            return self.form.read_plain(text) if plain else self.form.read(text)
        except UnsupportedValue as reason:
            raise ConfigError(self.name, f"{text!r}: {reason}") from None
        except ValueError:
            raise self._unexpected(text) from None

    def check(self, value: object) -> T:
        """``value`` if it is valid. Text is read as a person would write it."""
        if self.form.accepts(value):
            return value  # type: ignore[return-value]
        if isinstance(value, str):
            return self.read(value)
        raise self._unexpected(value)

    def write(self, value: Any) -> str | None:
        """``value`` in Kafka's spelling."""
        return self.form.write(value)

    def shown_default(self) -> str:
        """The default for a person: how it is computed, or the value with its unit."""
        return self._default.doc or self.form.shown(self.default)

    def __repr__(self) -> str:
        return f"Property({self.name!r})"

    def _unexpected(self, value: object) -> ConfigError:
        shown = "its value" if self.sensitive else repr(value)
        return ConfigError(self.name, f"{shown} is not valid, expected {self.form.expected()}")


def declared(owner: type) -> dict[str, Property[Any]]:
    """The properties of a class and its bases, by name, in declaration order."""
    found: dict[str, Property[Any]] = {}
    for base in reversed(owner.__mro__):
        for candidate in vars(base).values():
            if isinstance(candidate, Property):
                assert candidate.name not in found, f"{candidate.name} is declared twice"
                found[candidate.name] = candidate
    return found
