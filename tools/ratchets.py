"""What is counted and may only become less: private words in prose and as names, and bare ``int`` parameters.

**Private words.** Prose is docstrings, comments and texts of a program (logs, errors, help), and pages in Markdown.
The words are a dialect of this project, for which the field or plain English has a word.

**Bare ints.** A parameter of a public function that is annotated ``int`` may be an offset, a position, a term or a
shard, and the type checker takes one for the other. Where the name ends in a unit (``timeout_ms``, ``max_bytes``,
``count``) the name says what it is; other quantities have a type of their own in ``millstream.model``.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

from sources import per_file, text_of, tree_of

PRIVATE_WORDS = (
    "told",
    "looked at",
    "whoever",
    "somebody",
    "let go",
    "leisure",
    "census",
    "leftovers",
    "rescued",
    "door",
    "see the module",
    "begin anew",
    "begins anew",
    "come further",
    "leaves when",
    "it lives",
    "lives on",
    "sees to",
    "wants to know",
)
HEAVY_WORDS = (
    "begin",
    "begins",
    "begun",
    "began",
    "nobody",
    "goes on",
    "go on",
    "there are none",
    "there is none",
    "is gone",
    "are gone",
    "under way",
    "whatever",
    "any more",
    "meanwhile",
    "hear",
    "hears",
    "heard",
    "anew",
    "for good",
    "this life",
)
"""Words for which a Kafka engineer knows a plainer one; counted together, by room of the product."""

PRIVATE_NAMES = ("asking", "census", "door", "helpers", "leftovers", "leisure", "let_go", "looked", "told")
"""Identifiers of the product's code for which the field has a word; letter case does not count."""

_WORDS = re.compile(r"\b(" + "|".join(word.replace(" ", r"\s+") for word in PRIVATE_WORDS) + r")\b", re.IGNORECASE)
_HEAVY = re.compile(r"\b(" + "|".join(word.replace(" ", r"\s+") for word in HEAVY_WORDS) + r")\b", re.IGNORECASE)
_NAMES = re.compile("|".join(PRIVATE_NAMES), re.IGNORECASE)

ROOMS = ("coordinator", "core", "format", "iobuf", "kafka", "net", "partition", "raft", "shard", "storage")
"""The rooms whose ``int`` parameters are counted: those that offsets, positions and terms pass through."""

UNITS = ("bytes", "count", "limit", "max", "min", "ms", "ns", "percent", "port", "records", "seconds", "size", "us")


@per_file
def private_words(path: Path) -> Counter[str]:
    """How often each private word stands in the prose of the file."""
    text = text_of(path)
    if not _WORDS.search(text):
        return Counter()  # reading code token by token is slow
    if path.suffix == ".py":
        text = _prose(path)
    return Counter(re.sub(r"\s+", " ", found[1].lower()) for found in _WORDS.finditer(text))


@per_file
def heavy_words(path: Path) -> int:
    """How many heavy words stand in the prose of a Python file."""
    return len(_HEAVY.findall(_prose(path)))


@per_file
def private_names(path: Path) -> Counter[str]:
    """How often each private name stands in the code of the file, with or without an underscore before it."""
    text = text_of(path)
    if not _NAMES.search(text):
        return Counter()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    names = (token.string.lower().strip("_") for token in tokens if token.type == tokenize.NAME)
    return Counter(name for name in names if name in PRIVATE_NAMES)


@per_file
def bare_ints(path: Path) -> int:
    """How many parameters of the file's public functions are a bare ``int`` without a unit in their name."""
    return sum(
        1
        for function in _public_functions(tree_of(path))
        for parameter in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        if parameter.annotation is not None
        and ast.unparse(parameter.annotation).strip("'\"") in ("int", "int | None")
        and parameter.arg.rsplit("_", 1)[-1] not in UNITS
    )


def _prose(path: Path) -> str:
    """Comments and texts of Python code. What stands between the braces of an f-string is code."""
    comments = [line.rpartition("#")[2] for line in text_of(path).splitlines() if "#" in line]
    texts = [node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant)]
    return "\n".join(comments + [text for text in texts if isinstance(text, str)])


def _public_functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods whose name, and whose class's name, does not begin with an underscore; constructors too."""
    found: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_") or node.name == "__init__":
                found.append(node)
        elif isinstance(node, ast.ClassDef):
            if not node.name.startswith("_"):
                found += _public_functions(node)
        elif not isinstance(node, ast.expr):
            found += _public_functions(node)
    return found
