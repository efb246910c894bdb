"""Every setting of a node, as it is declared in ``config/properties``.

``NODE_PROPERTIES`` has the declarations by their Kafka names. ``NodeValues`` has one attribute for each, with the type
of its values; ``Settings`` are the values themselves.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class NodeValues(
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

    def value(self, name: str) -> Any:
        """The value of the property with this Kafka name."""
        return self.__dict__[node_property(name).field]

    def for_listener(self, name: str) -> Self:
        """A copy with the values that hold for the listener ``name``."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(self.by_listener.get(name.upper(), {}))
        return copy


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


NODE_PROPERTIES: Mapping[str, Property[Any]] = MappingProxyType(declared(NodeValues))
"""Every setting of a node by its Kafka name."""

_ALIASES = {alias: declaration for declaration in NODE_PROPERTIES.values() for alias in declaration.aliases}
