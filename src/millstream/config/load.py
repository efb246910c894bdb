"""Builds ``Settings`` from a file, variables, ``--set`` and flags.

Later sources win: defaults, the configuration file, variables, ``--set name=value``, the command's own flags. The file
is Kafka's ``server.properties``, or one like it (``config.properties_file``).
Settings of Kafka without a meaning here are left out (``carried``), and so are the listeners of its controllers.
Every error says where the setting stands; names that are unknown are all named in one error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.config.carried import check_carried, check_node, reason_of, without_controllers
from millstream.config.errors import ConfigError
from millstream.config.node_properties import NODE_PROPERTIES, UnknownName, node_property
from millstream.config.properties_file import read_properties_file
from millstream.config.settings import BY_LISTENER, CARRIED, Settings, split_listener

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CONTROLLERS: Final = "controller.listener.names"
_WITH_LISTENERS: Final = ("listeners", "advertised.listeners", "listener.security.protocol.map")


def load_settings(
    config_file: str | None = None,
    overrides: Iterable[str] = (),
    cli: Mapping[str, object] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Settings:
    """Build the node's settings.

    Args:
        config_file: path of a properties file, or None.
        overrides: ``name=value`` texts of ``--set``, names in Kafka's spelling.
        cli: values of flags by Python name (``{"data_dir": "/data", "memory_bytes": "512MiB"}``). None is a flag that
            was not given.
        variables: the environment of a broker: ``MILLSTREAM_MESSAGE_MAX_BYTES`` for ``message.max.bytes``. Those
            that name no setting are left alone: commands and orchestrators have variables of that prefix, too.

    Raises:
        ConfigError: names the setting (and the file's line) and what was expected.
    """
    values: dict[str, object] = {}
    by_listener: dict[str, dict[str, object]] = {}
    carried: dict[str, str] = {}
    unknown: list[ConfigError] = []
    texts = _texts(config_file, overrides, variables or {})
    last = {name: text for name, text, _ in texts}
    check_node(last)
    controllers = [each.strip() for each in last.get(_CONTROLLERS, "").split(",") if each.strip()]
    for name, text, place in texts:
        if _of_a_controller(name, controllers) or reason_of(name) is not None:
            carried[name] = text
            continue
        if name in _WITH_LISTENERS and controllers:
            text = without_controllers(name, text, controllers)
        try:
            listener, plain = split_listener(name)
            declaration = node_property(plain)
            into = by_listener.setdefault(listener, {}) if listener else values
            into[declaration.field] = declaration.read(text)
        except UnknownName as error:
            unknown.append(ConfigError(error.name, f"{error.problem}{place}"))
        except ConfigError as error:
            raise ConfigError(error.name, f"{error.problem}{place}") from None
    if unknown:
        first, *others = unknown
        raise ConfigError(first.name, "".join([first.problem, *(f"\n{other}" for other in others)]))
    values |= {field: value for field, value in (cli or {}).items() if value is not None}
    if by_listener:
        values[BY_LISTENER] = by_listener
    settings = Settings(**values, **{CARRIED: carried})
    check_carried(carried, settings)
    return settings


def _texts(
    config_file: str | None, overrides: Iterable[str], variables: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Name, text and place of every setting that is given, in the order in which later ones win."""
    found: list[tuple[str, str, str]] = []
    if config_file is not None:
        found += [
            (name, text, f" ({config_file}, line {number})") for number, name, text in read_properties_file(config_file)
        ]
    found += [
        (name, variables[variable], f" ({variable} in the environment)")
        for variable, name in settings_of(variables).items()
    ]
    for override in overrides:
        name, separator, text = override.partition("=")
        if not separator:
            raise ConfigError(override, "expected name=value, such as --set num.partitions=3")
        found.append((name.strip(), text, ""))
    return found


def _of_a_controller(name: str, controllers: Iterable[str]) -> bool:
    """Whether a setting is that of one of Kafka's controllers' listeners alone."""
    return name.startswith(tuple(f"listener.name.{each.lower()}." for each in controllers))


def settings_of(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that give settings, with the settings' names."""
    known = {variable_of(name): name for name, declared in NODE_PROPERTIES.items() if not declared.hidden}
    return {variable: known[variable] for variable in sorted(variables) if variable in known}


def variable_of(name: str) -> str:
    """The variable of the environment that gives a setting."""
    return f"MILLSTREAM_{name.upper().replace('.', '_')}"
