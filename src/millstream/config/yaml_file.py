"""A YAML file whose every complaint names line and column: what people declare, read into plain values and checked.

``read`` parses the text and remembers where each value stands; ``converted`` makes a structure of it. What is
wrong is said in the order of the file. A path such as ``("sinks", 0, "delta")`` leads from the document's root to a
value. Tags other than YAML's own are refused by the safe loader; a key that stands twice in a mapping is an error,
because one of the two would be lost.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec
import yaml

from millstream.errors import Rejected

Path: TypeAlias = tuple[str | int, ...]
T = TypeVar("T", bound=msgspec.Struct)

BYTES_MAX: Final = 1 << 20
_MAX_DEPTH: Final = 32
_MAX_VALUES: Final = 10_000
"""Also the bound on what aliases may multiply."""
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.+?)`")
_ENUM: Final = re.compile(r"Invalid enum value (.+?)(?= - at |$)")
_PATH: Final = re.compile(r" - at `\$?(.*?)`$")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class Problem(msgspec.Struct, frozen=True):
    """One fault. ``at_key``: it is the key that is wrong. ``line`` and ``column`` count inside of a text, from 1."""

    path: Path
    message: str
    at_key: bool = False
    line: int = 0
    column: int = 0


class SourcePosition(msgspec.Struct, frozen=True):
    """Where a value starts; line and column count from 1. ``text_line`` is where the text of a block scalar starts."""

    line: int
    column: int
    text_line: int


class Document(msgspec.Struct, frozen=True):
    """The plain values of a file and where they stand. ``keys`` are the places of mapping keys."""

    name: str
    value: Any
    positions: Mapping[Path, SourcePosition]
    keys: Mapping[Path, SourcePosition]

    def position(self, path: Path) -> SourcePosition:
        """The place of a value, or of the closest one above it that the file has."""
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions.get(path, SourcePosition(1, 1, 1))

    def complain(self, problem: Problem) -> str:
        """``file:line:column: sentence``."""
        position = self.keys.get(problem.path) if problem.at_key else None
        position = position or self.position(problem.path)
        line = position.text_line + problem.line - 1 if problem.line else position.line
        column = problem.column if problem.line else position.column
        return f"{self.name}:{line}:{column}: {problem.message}"


class InvalidFile(Rejected):
    """A file that cannot be carried out as it is written; ``problems`` holds one sentence for each fault."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def read_file(name: str) -> Document:
    """The document in a file.

    Raises:
        InvalidFile: the text is no YAML, or too large.
        OSError: the file cannot be read.
    """
    with open(name, "rb") as file:
        text = file.read(BYTES_MAX + 1)
    if len(text) > BYTES_MAX:
        raise InvalidFile([f"{name}: larger than 1 MiB, which is too much for one file"])
    return read(text, name)


def converted(document: Document, kind: type[T]) -> T:
    """The document as a structure.

    Raises:
        InvalidFile: it does not fit the structure; the message has the line and the valid keys.
    """
    if not isinstance(document.value, dict):
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        raise InvalidFile([f"{document.name}:1:1: the file is a mapping with the keys {known}"])
    try:
        return msgspec.convert(document.value, kind)
    except msgspec.ValidationError as error:
        raise InvalidFile([document.complain(_problem(str(error), document.value, kind))]) from None


def complaints(document: Document, problems: Sequence[Problem]) -> list[str]:
    """A sentence for each problem, in the order of the file."""
    return [document.complain(problem) for problem in sorted(problems, key=lambda one: _order(document, one))]


def read(text: bytes, name: str) -> Document:
    """Plain values and their places.

    Raises:
        InvalidFile: the text is no YAML, or not of the kind that a pipeline is.
    """
    positions: dict[Path, SourcePosition] = {}
    keys: dict[Path, SourcePosition] = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise InvalidFile([f"{name}:1:1: the file is empty"])
        value = _value(root, (), positions, keys, name)
    except yaml.MarkedYAMLError as error:
        position = error.problem_mark or error.context_mark
        where = f"{position.line + 1}:{position.column + 1}" if position else "1:1"
        said = " ".join(part for part in (error.context, error.problem) if part)
        raise InvalidFile([f"{name}:{where}: {said}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise InvalidFile([f"{name}:1:1: not readable as YAML: {error}"]) from None
    return Document(name, value, positions, keys)


def _value(
    node: Any, path: Path, positions: dict[Path, SourcePosition], keys: dict[Path, SourcePosition], name: str
) -> Any:
    position = node.start_mark
    block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    positions[path] = SourcePosition(position.line + 1, position.column + 1, position.line + (2 if block else 1))
    if len(path) > _MAX_DEPTH or len(positions) > _MAX_VALUES:
        what = f"nested deeper than {_MAX_DEPTH}" if len(path) > _MAX_DEPTH else f"more than {_MAX_VALUES} values"
        raise InvalidFile([f"{name}:{position.line + 1}:{position.column + 1}: {what}, which is too much for one file"])
    if isinstance(node, yaml.SequenceNode):
        return [_value(child, (*path, index), positions, keys, name) for index, child in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, child in node.value:
            key, place = str(key_node.value), key_node.start_mark
            if key in found:
                raise InvalidFile([f"{name}:{place.line + 1}:{place.column + 1}: {key} stands here twice"])
            keys[(*path, key)] = SourcePosition(place.line + 1, place.column + 1, place.line + 1)
            found[key] = _value(child, (*path, key), positions, keys, name)
        return found
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    finally:
        loader.dispose()


def _problem(text: str, value: Any, root: Any) -> Problem:
    """What msgspec says about a value, as a problem at a place."""
    place = _PATH.search(text)
    path, text = _located(place[1], text, value, root) if place else ((), text)
    sentence = _PATH.sub("", text)
    unknown = _UNKNOWN.match(sentence)
    if unknown:
        name = unknown[1]
        known = _fields_at(path, root)
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}" if known else ""
        return Problem((*path, name), f"{name} is not known here{hint}", at_key=True)
    enum = _ENUM.match(sentence)
    if enum:
        kinds = [field.type for field in _struct_fields(path[:-1], root) if field.encode_name in path[-1:]]
        hint = f"; known are {', '.join(_choices_of(kinds[0]))}" if kinds else ""
        return Problem(path, f"{enum[1]} is unknown{hint}")
    sentence = sentence.replace("Object missing required field", "missing").replace("`", "")
    return Problem(path, sentence[:1].lower() + sentence[1:])


def _located(steps: str, text: str, value: Any, root: Any) -> tuple[Path, str]:
    """The place that msgspec's steps lead to in a document, and what is wrong there.

    ``[...]`` is one of a mapping's values, which msgspec does not name: the first that is no value of the mapping's
    type alone has the fault.
    """
    path: Path = ()
    for match in _STEP.finditer(steps):
        if match[1] is not None:
            path = (*path, match[1])
        elif match[2].isdecimal():
            path = (*path, int(match[2]))
        else:
            return _in_mapping(path, text, value, root)
    return path, text


def _in_mapping(path: Path, text: str, value: Any, root: Any) -> tuple[Path, str]:
    mapping = value
    for step in path:
        mapping = mapping[step]
    kind = get_args(_kind_at(path, root))[-1]
    for key, entry in mapping.items():
        try:
            msgspec.convert(entry, kind)
        except msgspec.ValidationError as error:
            place = _PATH.search(str(error))
            inner, found = _located(place[1], str(error), entry, kind) if place else ((), str(error))
            return (*path, key, *inner), found
    return path, text


def _fields_at(path: Path, root: Any) -> list[str]:
    """The keys that the model knows at a place."""
    return [field.encode_name for field in _struct_fields(path, root)]


def _struct_fields(path: Path, root: Any) -> Sequence[Any]:
    """The fields of the model's structure at a place; none if there is no structure."""
    try:
        return msgspec.structs.fields(_kind_at(path, root))
    except TypeError:
        return ()


def _kind_at(path: Path, root: Any) -> Any:
    """The model's type at a place; None if the model has no such place."""
    kind: Any = root
    for step in path:
        if get_origin(kind) in (list, dict):
            kind = get_args(kind)[-1]
        else:
            kind = next((f.type for f in msgspec.structs.fields(kind) if f.encode_name == step), None)
        if get_origin(kind) in (Union, UnionType):
            kind = next(option for option in get_args(kind) if option is not type(None))
        if kind is None:
            return None
    return kind


def _choices_of(kind: Any) -> list[str]:
    """The texts that a literal type, or one of a union, allows."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [text for option in get_args(kind) for text in _choices_of(option)]


def _order(document: Document, problem: Problem) -> tuple[int, int]:
    position = document.position(problem.path)
    return position.line, position.column
