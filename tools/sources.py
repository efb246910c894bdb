"""Files of the project as text and as syntax, and what checks found in them, kept from one run to the next.

The check of the code's shape looks at 1,700 files at each change of a few. What a function of one file found is kept
in ``.cache/tidy.pickle``, by the content of the file and of the tools themselves, so that it only looks at files that
are new to it. A file that cannot be read or written costs time, and nothing else.
"""

import ast
import functools
import os
import pickle
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

TOOLS = Path(__file__).resolve().parent
KEPT = TOOLS.parent / ".cache" / "tidy.pickle"

_P = ParamSpec("_P")
_T = TypeVar("_T")


@cache
def text_of(path: Path) -> str:
    """The file's text, in UTF-8."""
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    """The file's syntax; nothing may change it."""
    return ast.parse(text_of(path))


def per_file(find: Callable[Concatenate[Path, _P], _T]) -> Callable[Concatenate[Path, _P], _T]:
    """A function of a file's content whose results are kept; they may depend on its name, and not on where it lies."""

    @functools.wraps(find)
    def kept(path: Path, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        key = (find.__module__, find.__qualname__, _digest(text_of(path)), path.name, args, tuple(kwargs.items()))
        if key not in _found():
            _found()[key] = find(path, *args, **kwargs)
            _fresh.append(key)
        _seen.add(key)
        return _found()[key]

    return kept


def keep() -> None:
    """Write what this run used, for the next one."""
    if not _fresh and len(_seen) == len(_found()):
        return
    used = {key: found for key, found in _found().items() if key in _seen}
    aside = KEPT.with_suffix(f".{os.getpid()}")
    try:
        KEPT.parent.mkdir(exist_ok=True)
        aside.write_bytes(pickle.dumps((_version(), used)))
        aside.replace(KEPT)
    except OSError:
        return


_fresh: list[tuple[Any, ...]] = []
_seen: set[tuple[Any, ...]] = set()


@cache
def _found() -> dict[tuple[Any, ...], Any]:
    """Function, content and arguments → result, of earlier runs of these very tools and of this one."""
    try:
        version, found = pickle.loads(KEPT.read_bytes())
    except (OSError, EOFError, ValueError, pickle.UnpicklingError, AttributeError, ImportError):
        return {}
    return found if version == _version() else {}


@cache
def _version() -> str:
    return _digest("".join(text_of(path) for path in sorted(TOOLS.glob("*.py"))))


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
