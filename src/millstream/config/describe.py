"""Settings as Kafka's DescribeConfigs shows them.

Each property has its value, its source, its synonyms (the effective one first), its Kafka type number and its
documentation. Sensitive values are withheld.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

from millstream.config.client_metrics import CLIENT_METRICS
from millstream.config.event_properties import of_events
from millstream.config.group_properties import GROUP_PROPERTIES, group_setting
from millstream.config.node_properties import NODE_PROPERTIES
from millstream.config.settings import Settings
from millstream.config.table_properties import of_tables
from millstream.config.topic_properties import TOPIC_PROPERTIES, default_of, synonyms_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.config.property import Property

# Kafka's ConfigSource numbers.
SOURCE_TOPIC = 1
SOURCE_DYNAMIC_BROKER = 2
SOURCE_STATIC_BROKER = 4
SOURCE_DEFAULT = 5
SOURCE_CLIENT_METRICS = 7
SOURCE_GROUP = 8


class ConfigSynonym(NamedTuple):
    """A name that can set the value, and the value that it has there."""

    name: str
    value: str | None
    source: int


class ConfigEntry(NamedTuple):
    """One property in DescribeConfigs. ``kafka_type`` and ``source`` are Kafka's numbers."""

    name: str
    value: str | None
    read_only: bool
    source: int
    sensitive: bool
    kafka_type: int
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]

    def given_by(self, source: int) -> Self:
        """The entry as ``source`` gave it, which is among its synonyms."""
        synonyms = tuple(synonym for synonym in self.synonyms if synonym.source == source)
        return self._replace(value=synonyms[0].value, source=source, synonyms=synonyms)


def describe_node(settings: Settings, extra: Mapping[str, tuple[str, str]] | None = None) -> list[ConfigEntry]:
    """Every visible setting of the node. ``extra`` adds read-only facts: name → (value, documentation)."""
    entries: list[ConfigEntry] = []
    for name, declaration in NODE_PROPERTIES.items():
        if declaration.hidden:
            continue
        synonyms = _node_synonyms(declaration, settings)
        value = declaration.write(settings.value(name))
        entries.append(_entry(declaration, name, synonyms, read_only=not declaration.live, value=value))
    entries.extend(_of_listeners(settings))
    for name, (value, documentation) in (extra or {}).items():
        fact = ConfigSynonym(name, value, SOURCE_STATIC_BROKER)
        entries.append(ConfigEntry(name, value, True, SOURCE_STATIC_BROKER, False, 2, documentation, (fact,)))
    entries.sort()
    return entries


def _of_listeners(settings: Settings) -> list[ConfigEntry]:
    """What is set for single listeners."""
    entries: list[ConfigEntry] = []
    fields = {declaration.field: declaration for declaration in NODE_PROPERTIES.values()}
    for listener, values in settings.by_listener.items():
        for field, value in values.items():
            declaration = fields[field]
            name = f"listener.name.{listener.lower()}.{declaration.name}"
            synonym = ConfigSynonym(name, declaration.write(value), SOURCE_STATIC_BROKER)
            entries.append(_entry(declaration, name, (synonym,), read_only=True, value=synonym.value))
    return entries


def describe_topic(overrides: Mapping[str, str], settings: Settings, *, as_read: bool = False) -> list[ConfigEntry]:
    """Every visible property of a topic with ``overrides``, on a node with ``settings``.

    ``as_read`` writes values in normal form (``7`` for `` 7``); otherwise they appear as they were given. Properties of
    event topics, and of topics that are tables, are left out for others. No value is null: tools that copy a topic's
    configuration need texts.
    """
    entries: list[ConfigEntry] = []
    has_events = overrides.get("topic.kind") == "events"
    has_table = any(map(of_tables, overrides))
    for name, declaration in TOPIC_PROPERTIES.items():
        absent = (of_events(name) and not has_events) or (of_tables(name) and not has_table)
        if (declaration.hidden or absent) and name not in overrides:
            continue
        synonyms: list[ConfigSynonym] = []
        own = overrides.get(name)
        if own is not None and as_read:
            own = declaration.write(declaration.read(own, plain=True))
        if name in overrides:
            synonyms.append(ConfigSynonym(name, own, SOURCE_TOPIC))
        for synonym in synonyms_of(name):
            if settings.__dict__[synonym.declaration.field] is not None:
                synonyms.extend(_node_synonyms(synonym.declaration, settings))
        value = own if name in overrides else declaration.write(default_of(declaration, settings))
        entries.append(_entry(declaration, name, tuple(synonyms), read_only=False, value=value or ""))
    entries.sort()
    return entries


def describe_client_metrics(configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Every property of a client metrics subscription with ``configs``."""
    entries: list[ConfigEntry] = []
    for name, declaration in CLIENT_METRICS.items():
        own = (ConfigSynonym(name, configs[name], SOURCE_CLIENT_METRICS),) if name in configs else ()
        value = configs.get(name, declaration.write(declaration.default))
        entries.append(_entry(declaration, name, own, read_only=False, value=value))
    entries.sort()
    return entries


def describe_group(configs: Mapping[str, str], settings: Settings) -> list[ConfigEntry]:
    """Every property of a consumer group with ``configs``, on a node with ``settings``."""
    entries: list[ConfigEntry] = []
    for name, declaration in GROUP_PROPERTIES.items():
        setting = group_setting(name)
        own = (ConfigSynonym(name, configs[name], SOURCE_GROUP),) if name in configs else ()
        if setting is None:
            default = declaration.write(declaration.default)
            inherited = (ConfigSynonym(name, default, SOURCE_DEFAULT),)
        else:
            default = setting.write(settings.__dict__[setting.field])
            inherited = _node_synonyms(setting, settings)
        synonyms = own + inherited
        value = configs.get(name, default)
        entries.append(_entry(declaration, name, synonyms, read_only=False, value=value))
    entries.sort()
    return entries


def _node_synonyms(declaration: Property[Any], settings: Settings) -> tuple[ConfigSynonym, ...]:
    """The setting itself, if changed or given, then its default."""
    name = declaration.name
    current = declaration.write(settings.__dict__[declaration.field])
    default = declaration.write(declaration.default)
    defaults = () if default is None else (ConfigSynonym(name, default, SOURCE_DEFAULT),)
    if name in settings.dynamic:
        return (ConfigSynonym(name, current, SOURCE_DYNAMIC_BROKER), *defaults)
    if name in settings.given:
        return (ConfigSynonym(name, current, SOURCE_STATIC_BROKER), *defaults)
    return defaults


def _entry(
    declaration: Property[Any], name: str, synonyms: tuple[ConfigSynonym, ...], *, read_only: bool, value: str | None
) -> ConfigEntry:
    source = synonyms[0].source if synonyms else SOURCE_DEFAULT
    if declaration.sensitive:
        value, synonyms = None, tuple(synonym._replace(value=None) for synonym in synonyms)
    kafka_type = declaration.form.kafka_type
    return ConfigEntry(name, value, read_only, source, declaration.sensitive, kafka_type, declaration.doc, synonyms)
