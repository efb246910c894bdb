r"""Files of properties, in Java's format, so that Kafka's own files are read as Kafka reads them.

::

    # a comment, also after a !
    name=value            name:value and "name value" are the same
    long.name=first \
        second            a backslash at the end joins the next line, without the white space before it

In names and values a backslash stands before a character that shall lose its meaning (``\\`` is one backslash);
``\t``, ``\n``, ``\r``, ``\f`` and ``\uXXXX`` are characters. Four things differ from ``java.util.Properties``: the
file is UTF-8, white space at the end of a value is not part of it, and refused are a repeated name and a line that has
neither a separator nor a value.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from millstream.config.errors import ConfigError

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_BLANK: Final = " \t\f"
_NAME: Final = re.compile(r"(?:\\.|[^\\=: \t\f])+")
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:][ \t\f]*|[ \t\f]+")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_TO_ESCAPE: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_IN_NAMES: Final = re.compile("[=:#! ]")
_AT_ENDS: Final = re.compile("^ +| +$")
_ESCAPED: Final = r"\\\g<0>"


def read_properties_file(path: str) -> list[tuple[int, str, str]]:
    """The (line number, name, value) triples of a file; the number is that of the first of several joined lines.

    Raises:
        ConfigError: the file cannot be read, has a line that is no property, or has a name twice. No value is quoted,
            because it may be a secret.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(path, f"the configuration file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(path, "the configuration file is not UTF-8 text") from None
    found: list[tuple[int, str, str]] = []
    seen: dict[str, int] = {}
    for number, name, value in parse_properties(text):
        if value is None:
            raise ConfigError(path, f"line {number} is no property, expected name=value")
        if name in seen:
            raise ConfigError(name, f"is given twice in {path}, on lines {seen[name]} and {number}")
        seen[name] = number
        found.append((number, name, value))
    return found


def parse_properties(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Line number, name and value of each property. The value is None where nothing separates it from a name."""
    for number, line in _logical_lines(text):
        name = _NAME.match(line)
        separator = _SEPARATOR.match(line, 0 if name is None else name.end())
        if name is None or separator is None:
            yield number, line, None
        else:
            yield number, _unescaped(name[0]), _unescaped(line[separator.end() :])


def write_properties(found: Mapping[str, str]) -> str:
    """The text that reads back as these properties."""
    return "".join(
        f"{_IN_NAMES.sub(_ESCAPED, _escaped(name))}={_AT_ENDS.sub(_spaces, _escaped(value))}\n"
        for name, value in found.items()
    )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that they are continued in, and the number of the first. Blank lines and comments are left
    out. White space around a line is not part of its value.
    """
    lines = iter(enumerate(_LINE_END.split(text), start=1))
    for number, natural in lines:
        line = natural.strip(_BLANK)
        if not line or line[0] in "#!":
            continue
        while _continues(natural):
            _, natural = next(lines, (0, ""))
            line = line[:-1] + natural.strip(_BLANK)
        yield number, line


def _continues(line: str) -> bool:
    """Whether a line ends with a backslash that no other one escapes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _character(found[1]), text)


def _character(escaped: str) -> str:
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _LETTERS.get(escaped, escaped)


def _escaped(text: str) -> str:
    return "".join(_TO_ESCAPE.get(one, one) for one in text)


def _spaces(found: re.Match[str]) -> str:
    return "\\u0020" * len(found[0])
