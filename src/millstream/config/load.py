"""Builds ``Settings`` from a file, variables, ``--set`` and flags.

Later sources win: defaults, the configuration file, variables, ``--set name=value``, the command's own flags. The file
has one ``name=value`` per line, and ``#`` starts a comment line: Kafka's ``server.properties`` without its escapes.
Every error says where the setting stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.config.errors import ConfigError
from millstream.config.settings import BY_LISTENER, NODE_PROPERTIES, Settings, node_property, split_listener

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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

    def put(name: str, text: str) -> None:
        listener, plain = split_listener(name)
        declaration = node_property(plain)
        into = by_listener.setdefault(listener, {}) if listener else values
        into[declaration.field] = declaration.read(text)

    if config_file is not None:
        for line_number, name, text in read_properties_file(config_file):
            try:
                put(name, text)
            except ConfigError as error:
                raise ConfigError(error.name, f"{error.problem} ({config_file}, line {line_number})") from None
    given = variables or {}
    for variable, name in settings_of(given).items():
        try:
            put(name, given[variable])
        except ConfigError as error:
            raise ConfigError(error.name, f"{error.problem} ({variable} in the environment)") from None
    for override in overrides:
        name, separator, text = override.partition("=")
        if not separator:
            raise ConfigError(override, "expected name=value, such as --set num.partitions=3")
        put(name.strip(), text)
    values |= {field: value for field, value in (cli or {}).items() if value is not None}
    if by_listener:
        values[BY_LISTENER] = by_listener
    return Settings(**values)


def settings_of(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that give settings, with the settings' names."""
    known = {variable_of(name): name for name, declared in NODE_PROPERTIES.items() if not declared.hidden}
    return {variable: known[variable] for variable in sorted(variables) if variable in known}


def variable_of(name: str) -> str:
    """The variable of the environment that gives a setting."""
    return f"MILLSTREAM_{name.upper().replace('.', '_')}"


def read_properties_file(path: str) -> list[tuple[int, str, str]]:
    """The (line number, name, text) triples of a properties file. A repeated name is refused."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise ConfigError(path, f"the configuration file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(path, "the configuration file is not UTF-8 text") from None
    found: list[tuple[int, str, str]] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, separator, text = stripped.partition("=")
        name = name.strip()
        if not separator or not name:
            raise ConfigError(path, f"line {number} is {stripped!r}, expected name=value")
        if name in seen:
            raise ConfigError(name, f"is given twice in {path}, on lines {seen[name]} and {number}")
        seen[name] = number
        found.append((number, name, text.strip()))
    return found
