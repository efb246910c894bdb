"""What makes a class or a file hard to follow, found in its syntax: each is counted and may only become less.

**Fields.** A class with more than a dozen fields is two classes. Counted is what ``__init__`` assigns to ``self`` and
what the class body declares. Records that nobody can change (``NamedTuple``, a frozen ``Struct`` or ``dataclass``),
protocols, enumerations and wire messages are lists of values, not state, and are left out.

**Satellites.** A file whose functions take an instance of a class of another file first, and use its private names,
is a part of that class that was put elsewhere. Counted are these functions, by file.

**Any.** On the paths of produce and fetch (the files whose docstrings number the steps, ``Produce 3/8.``) every value
has a type that says what it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sources import per_file, text_of, tree_of

FIELDS_MAX = 12
VALUES = {"NamedTuple", "Protocol", "TypedDict", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "Message"}
STEP = re.compile(r"\b(Produce|Fetch) \d/\d")


@per_file
def large_classes(path: Path) -> list[tuple[str, int]]:
    """(dotted name in the file, fields) of each class with more fields than a class should have."""
    return list(_large_classes(tree_of(path), ""))


def _large_classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef):
            continue
        name = prefix + child.name
        if not _is_value(child) and (count := len(fields_of(child))) > FIELDS_MAX:
            yield name, count
        yield from _large_classes(child, name + ".")


def fields_of(node: ast.ClassDef) -> set[str]:
    """What the body declares and ``__init__`` assigns."""
    found: set[str] = set()
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if "ClassVar" not in ast.unparse(statement.annotation):
                found.add(statement.target.id)
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__" and statement.args.args:
            own = statement.args.args[0].arg
            found |= {
                part.attr
                for part in ast.walk(statement)
                if isinstance(part, ast.Attribute)
                and isinstance(part.ctx, ast.Store)
                and isinstance(part.value, ast.Name)
                and part.value.id == own
            }
    return found


def _is_value(node: ast.ClassDef) -> bool:
    """Whether its instances are values that nothing changes."""
    bases = {ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases}
    calls = [call for call in node.decorator_list if isinstance(call, ast.Call)]
    marks = [*node.keywords, *(given for call in calls for given in call.keywords)]
    frozen = any(
        given.arg == "frozen" and isinstance(given.value, ast.Constant) and given.value.value is True for given in marks
    )
    return frozen or bool(bases & VALUES)


@per_file
def satellites(path: Path) -> list[str]:
    """The file's functions whose first parameter is of a class of another file, whose private names they use."""
    tree = tree_of(path)
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _orbits(node, own)
    ]


def _orbits(node: ast.FunctionDef | ast.AsyncFunctionDef, own: set[str]) -> bool:
    if not node.args.args or node.args.args[0].annotation is None:
        return False
    first = node.args.args[0]
    kind = ast.unparse(first.annotation).strip("'\"") if first.annotation is not None else ""
    if not re.fullmatch(r"[A-Z]\w*(\[.*\])?", kind) or kind.split("[")[0] in own:
        return False
    return any(
        isinstance(part, ast.Attribute)
        and isinstance(part.value, ast.Name)
        and part.value.id == first.arg
        and re.match(r"_[^_]", part.attr) is not None
        for part in ast.walk(node)
    )


@per_file
def untyped(path: Path) -> int:
    """How often ``Any`` stands in an annotation of a file on the paths of produce and fetch."""
    text = text_of(path)
    if "Any" not in text or not STEP.search(text):
        return 0
    names = (part for annotation in _annotations(tree_of(path)) for part in ast.walk(annotation))
    return sum(getattr(part, "id", "") == "Any" for part in names)


def _annotations(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield node.returns
