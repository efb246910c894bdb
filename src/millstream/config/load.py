"""Builds ``Settings`` from a file, ``--set`` and flags.

Later sources win: defaults, the configuration file, ``--set name=value``, the command's own flags. The file has one
``name=value`` per line, and ``#`` starts a comment line: Kafka's ``server.properties`` without its escapes. Every error
says where the setting stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.config.errors import ConfigError
from millstream.config.settings import Settings, node_property

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def load_settings(
    config_file: str | None = None,
    overrides: Iterable[str] = (),
    cli: Mapping[str, object] | None = None,
) -> Settings:
    """Build the node's settings.

    Args:
        config_file: path of a properties file, or None.
        overrides: ``name=value`` texts of ``--set``, names in Kafka's spelling.
        cli: values of flags by Python name (``{"data_dir": "/data", "memory_bytes": "512MiB"}``). None is a flag that
            was not given.

    Raises:
        ConfigError: names the setting (and the file's line) and what was expected.
    """
    values: dict[str, object] = {}
    if config_file is not None:
        for line_number, name, text in read_properties_file(config_file):
            try:
                declaration = node_property(name)
                values[declaration.field] = declaration.read(text)
            except ConfigError as error:
                raise ConfigError(error.name, f"{error.problem} ({config_file}, line {line_number})") from None
    for override in overrides:
        name, separator, text = override.partition("=")
        if not separator:
            raise ConfigError(override, "expected name=value, such as --set num.partitions=3")
        declaration = node_property(name.strip())
        values[declaration.field] = declaration.read(text)
    values |= {field: value for field, value in (cli or {}).items() if value is not None}
    return Settings(**values)


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
