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
from millstream.config.properties.access import AccessProperties
from millstream.config.properties.cluster import ClusterProperties
from millstream.config.properties.groups import GroupProperties
from millstream.config.properties.network import NetworkProperties
from millstream.config.properties.node import NodeProperties
from millstream.config.properties.security import SecurityProperties
from millstream.config.properties.share_groups import ShareGroupProperties
from millstream.config.properties.sign_in import SignInProperties
from millstream.config.properties.storage import StorageProperties
from millstream.config.properties.streams_groups import StreamsGroupProperties
from millstream.config.properties.tiers import TierProperties
from millstream.config.properties.tokens import TokenProperties
from millstream.config.properties.topics import TopicDefaultProperties
from millstream.config.properties.transactions import TransactionProperties
from millstream.config.properties.without_effect import WithoutEffectProperties
from millstream.config.property import Property, declared
from millstream.config.relations import MEMORY_PER_SHARD_MIN, check_relations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


BY_LISTENER: Final = "by_listener"
CARRIED: Final = "carried"
_LISTENER_PREFIX: Final = "listener.name."


class Settings(
    NodeProperties,
    ClusterProperties,
    NetworkProperties,
    SecurityProperties,
    AccessProperties,
    TokenProperties,
    SignInProperties,
    TopicDefaultProperties,
    GroupProperties,
    ShareGroupProperties,
    StreamsGroupProperties,
    TransactionProperties,
    StorageProperties,
    TierProperties,
    WithoutEffectProperties,
):
    """Every setting of a node.

    ``given`` holds the names of the properties that were set at start, ``dynamic`` the names of those changed since.
    All others have their defaults.
    """

    given: frozenset[str]
    dynamic: frozenset[str]
    by_listener: Mapping[str, Mapping[str, Any]]
    """Values of single listeners: name in upper case, Python name of the setting, value."""
    carried: Mapping[str, str]
    """What was given of Kafka's settings that have no meaning here (``carried``), as text. It may hold secrets."""

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

    def for_listener(self, name: str) -> Settings:
        """A copy with the values that hold for the listener ``name``."""
        copy = object.__new__(Settings)
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(self.by_listener.get(name.upper(), {}))
        return copy

    def value(self, name: str) -> Any:
        """The value of the property with this Kafka name."""
        return self.__dict__[node_property(name).field]

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


def without_effect(names: Iterable[str]) -> list[Property[Any]]:
    """Those of some settings that are accepted for Kafka's sake and have no effect, in the order of their names."""
    return [NODE_PROPERTIES[name] for name in sorted(names) if not NODE_PROPERTIES[name].effect]


def is_setting(name: str) -> bool:
    """Whether there is a setting with this Kafka name or alias."""
    return name in NODE_PROPERTIES or name in _ALIASES


def node_property(name: str) -> Property[Any]:
    """The declaration with this Kafka name or alias. ConfigError with the nearest name if there is none."""
    declaration = NODE_PROPERTIES.get(name) or _ALIASES.get(name)
    if declaration is None:
        raise unknown_name(name, NODE_PROPERTIES)
    return declaration


class UnknownName(ConfigError):
    """There is no setting with this name."""


def unknown_name(name: str, known: Mapping[str, Property[Any]]) -> UnknownName:
    """The error for an undeclared name."""
    from difflib import get_close_matches

    visible = [candidate for candidate, declaration in known.items() if not declaration.hidden]
    near = get_close_matches(name.replace("_", "."), visible, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "'millstream config list', with --topics for topics, shows all"
    return UnknownName(name, f"there is no such setting; {hint}")


NODE_PROPERTIES: Mapping[str, Property[Any]] = MappingProxyType(declared(Settings))
"""Every setting of a node by its Kafka name."""

_ALIASES = {alias: declaration for declaration in NODE_PROPERTIES.values() for alias in declaration.aliases}
