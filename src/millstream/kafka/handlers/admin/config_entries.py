"""The entries of a configuration in DescribeConfigs, with the source of every value.

``config.describe`` knows values, defaults and settings given at start. Live changes are the controller's: made for this
broker, for every broker, or for both, which Kafka's responses distinguish.
"""

from collections.abc import Mapping
from itertools import filterfalse
from typing import Final

from millstream.config.describe import (
    SOURCE_DYNAMIC_BROKER,
    SOURCE_STATIC_BROKER,
    ConfigEntry,
    ConfigSynonym,
    describe_topic,
)
from millstream.config.node_properties import NODE_PROPERTIES, is_setting
from millstream.core.controller.commands import CLUSTER_DEFAULT
from millstream.kafka.context import Node

SOURCE_DYNAMIC_DEFAULT: Final = 3
"""Kafka's number for a live change of every broker."""


_UNKNOWN_TYPE: Final = 0
_STRANGE: Final = "There is no such setting here: it has no effect."


def topic_entries(node: Node, configs: Mapping[str, str], *, as_read: bool = False) -> list[ConfigEntry]:
    """Every property of a topic with ``configs``, as given or in normal form."""
    return [attributed(node, entry) for entry in describe_topic(configs, node.metadata.settings, as_read=as_read)]


def of_every_broker(node: Node) -> Mapping[str, str]:
    """Live changes of every broker."""
    return node.metadata.state.configs.nodes.get(CLUSTER_DEFAULT, {})


def strangers(node: Node) -> list[ConfigEntry]:
    """Live changes of settings that do not exist here: kept, without effect, and shown as Kafka does, without value."""
    own = node.metadata.state.configs.nodes.get(node.metadata.node_id, {})
    found: list[ConfigEntry] = []
    for name in sorted(filterfalse(is_setting, own.keys() | of_every_broker(node).keys())):
        given = [(own, SOURCE_DYNAMIC_BROKER), (of_every_broker(node), SOURCE_DYNAMIC_DEFAULT)]
        synonyms = tuple(ConfigSynonym(name, None, source) for changes, source in given if name in changes)
        found.append(ConfigEntry(name, None, False, synonyms[0].source, True, _UNKNOWN_TYPE, _STRANGE, synonyms))
    return found


def attributed(node: Node, entry: ConfigEntry) -> ConfigEntry:
    """``entry`` with the source of a live change: this broker, every broker, or both."""
    own = node.metadata.state.configs.nodes.get(node.metadata.node_id, {})
    synonyms: list[ConfigSynonym] = []
    for synonym in entry.synonyms:
        name = synonym.name
        if synonym.source != SOURCE_DYNAMIC_BROKER:
            synonyms.append(synonym)
            continue
        if name in own:
            synonyms.append(ConfigSynonym(name, own[name], SOURCE_DYNAMIC_BROKER))
        if name in of_every_broker(node):
            synonyms.append(ConfigSynonym(name, of_every_broker(node)[name], SOURCE_DYNAMIC_DEFAULT))
        start = node.metadata.start_settings
        if name in start.given:
            at_start = NODE_PROPERTIES[name].write(start.value(name))
            synonyms.append(ConfigSynonym(name, at_start, SOURCE_STATIC_BROKER))
    source = synonyms[0].source if synonyms else entry.source
    return entry._replace(synonyms=tuple(synonyms), source=source)
