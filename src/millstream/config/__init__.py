"""Configuration: every setting is declared once, read once, and typed.

``load_settings`` turns a file, ``--set`` texts and flags into ``Settings``. ``topic_config`` resolves a topic's own
properties over them. ``describe_node`` and ``describe_topic`` show both as Kafka does. The declarations are in
``config/properties`` and ``config/topic_properties.py``; ``config/forms.py`` defines how values are written.

A wrong setting raises ``ConfigError``, whose one sentence names the setting, the value and what was expected. This
package reads no environment, logs nothing, keeps no state, and imports in a few milliseconds.
"""

from millstream.config.describe import ConfigEntry, ConfigSynonym, describe_node, describe_topic
from millstream.config.errors import ConfigError
from millstream.config.forms import Endpoint, human_size, parse_duration_ms, parse_endpoint, parse_size
from millstream.config.load import load_settings
from millstream.config.node_properties import NODE_PROPERTIES, node_property
from millstream.config.settings import Settings
from millstream.config.topic_properties import (
    TOPIC_PROPERTIES,
    TopicConfig,
    topic_property,
    validate_topic_property,
)
from millstream.config.topic_resolution import topic_config

__all__ = [
    "NODE_PROPERTIES",
    "TOPIC_PROPERTIES",
    "ConfigEntry",
    "ConfigError",
    "ConfigSynonym",
    "Endpoint",
    "Settings",
    "TopicConfig",
    "describe_node",
    "describe_topic",
    "human_size",
    "load_settings",
    "node_property",
    "parse_duration_ms",
    "parse_endpoint",
    "parse_size",
    "topic_config",
    "topic_property",
    "validate_topic_property",
]
