"""Import circles: sets of modules in which each one reaches each other one through imports.

Who changes a file of a circle has to know all of its files. An import counts wherever it stands: at the top, in a
function, behind ``TYPE_CHECKING``. A name that a package's ``__init__`` re-exports counts as an import of the module
that defines the name, so that a package with a public face does not tie its modules together.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from sources import per_file, tree_of


def import_graph(sources: Mapping[str, Path]) -> dict[str, set[str]]:
    """Module name → modules of ``sources`` that it imports, itself excluded. ``sources`` maps module names to files."""
    statements = {name: _imported(path, name) for name, path in sources.items()}
    faces = {
        name: {bound: (base, wanted) for base, wanted, bound in statements[name] if wanted is not None}
        for name, path in sources.items()
        if path.name == "__init__.py"
    }

    def defined_in(base: str, wanted: str | None) -> str:
        seen: set[tuple[str, str]] = set()
        while wanted is not None and (base, wanted) not in seen:
            seen.add((base, wanted))
            if f"{base}.{wanted}" in sources:
                return f"{base}.{wanted}"
            if wanted not in faces.get(base, {}):
                return base
            base, wanted = faces[base][wanted]
        return base

    return {
        name: {found for base, wanted, _ in entries if (found := defined_in(base, wanted)) in sources} - {name}
        for name, entries in statements.items()
    }


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of two modules or more that all reach each other, each sorted; the largest first."""
    reached = {module: _reached(graph, module) for module in graph}
    found = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
        if module in reached[module]
    }
    return sorted((sorted(circle) for circle in found), key=lambda circle: (-len(circle), circle))


def common_package(modules: list[str]) -> str:
    """The innermost package that contains all of ``modules``, two or more."""
    return os.path.commonpath([module.replace(".", "/") for module in modules]).replace("/", ".")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below ``node``, without what is inside expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Modules that ``start`` imports, directly or through others; ``start`` itself when a circle leads back to it."""
    found: set[str] = set()
    to_follow = [start]
    while to_follow:
        fresh = graph[to_follow.pop()] - found
        found |= fresh
        to_follow += fresh
    return found


@per_file
def _imported(path: Path, name: str) -> list[tuple[str, str | None, str]]:
    """(module, name in it or None, name that it is bound to) of every import statement in the file."""
    return list(_imports_of(path, name))


def _imports_of(path: Path, name: str) -> Iterator[tuple[str, str | None, str]]:
    for node in statements(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")
                kept = parents[: len(parents) - node.level + (path.name == "__init__.py")]
                base = ".".join([*kept, base] if base else kept)
            for alias in node.names:
                yield base, alias.name, alias.asname or alias.name
