"""Settings: the typed values of one node, fixed when it starts.

``Settings`` has one attribute per declared property (``millstream.config.properties``). It is immutable;
``with_dynamic`` returns a copy with changed live settings, ``for_listener`` one with what holds for one listener. As in
Kafka, ``listener.name.NAME.`` before a setting sets it for the listener NAME alone. Tests build one from literals:
``Settings(data_dir="/tmp/x", shards=1)``. Relations between settings are checked at construction, so an existing
instance is consistent.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from millstream.config.errors import ConfigError
from millstream.config.node_properties import NODE_PROPERTIES, NodeValues, is_setting, node_property
from millstream.config.relations import MEMORY_PER_SHARD_MIN, check_relations

if TYPE_CHECKING:
    from collections.abc import Mapping

BY_LISTENER: Final = "by_listener"
CARRIED: Final = "carried"
_LISTENER_PREFIX: Final = "listener.name."


class Settings(NodeValues):
    """Every setting of a node, with its value."""

    def __init__(self, **values: object) -> None:
        """Take values by Python name (typed, or text as a person writes it). All others get their defaults."""
        given: set[str] = set()
        own = self.__dict__
        own[BY_LISTENER] = _checked(values.pop(BY_LISTENER, {}))
        own[CARRIED] = values.pop(CARRIED, {})
        for name, declaration in NODE_PROPERTIES.items():
            if declaration.field in values:
                own[declaration.field] = declaration.check(values.pop(declaration.field))
                given.add(name)
            else:
                own[declaration.field] = declaration.default
        if values:
            raise ConfigError(next(iter(values)), "there is no such setting")
        if "shards" not in given:
            own["shards"] = min(own["shards"], max(1, own["memory_bytes"] // MEMORY_PER_SHARD_MIN))
        own["given"] = frozenset(given)
        own["dynamic"] = frozenset()
        check_relations(self)

    def with_dynamic(self, changes: Mapping[str, str]) -> Settings:
        """A copy with changed live settings, by Kafka name and text. Names that do not exist are left out. ConfigError
        if a setting is not live or a value is invalid.
        """
        copy = object.__new__(Settings)
        own = copy.__dict__
        own.update(self.__dict__)
        for name, text in changes.items():
            if not is_setting(name):
                continue
            declaration = node_property(name)
            if not declaration.live:
                raise ConfigError(name, "can only be changed with a restart")
            own[declaration.field] = declaration.read(text, plain=True)
        own["dynamic"] = self.dynamic | set(filter(is_setting, changes))
        check_relations(copy)
        return copy

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings are immutable, {name} cannot be assigned")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = (NODE_PROPERTIES[name] for name in sorted(self.given | self.dynamic))
        changed = (f"{each.field}={'…' if each.sensitive else repr(self.__dict__[each.field])}" for each in shown)
        return f"Settings({', '.join(changed)})"


def split_listener(name: str) -> tuple[str, str]:
    """Listener and setting of ``listener.name.NAME.setting``; no listener ("") for any other name.

    Raises:
        ConfigError: the setting cannot be set for one listener.
    """
    if not name.startswith(_LISTENER_PREFIX):
        return "", name
    rest = name.removeprefix(_LISTENER_PREFIX)
    listener, _, plain = rest.partition(".")
    while not is_setting(plain) and "." in plain:  # a listener's name may have dots
        part, _, plain = plain.partition(".")
        listener = f"{listener}.{part}"
    if not is_setting(plain):
        listener, _, plain = rest.partition(".")
    if not node_property(plain).per_listener:
        raise ConfigError(name, f"{plain} cannot be set for one listener, expected {plain} without a prefix")
    return listener.upper(), plain


def _checked(by_listener: Any) -> Mapping[str, Mapping[str, Any]]:
    """The values of single listeners, each checked."""
    fields = {declaration.field: declaration for declaration in NODE_PROPERTIES.values() if declaration.per_listener}
    return MappingProxyType(
        {
            name.upper(): {field: fields[field].check(value) for field, value in values.items()}
            for name, values in by_listener.items()
        }
    )
