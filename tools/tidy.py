"""The code's shape as a check: what is too long, dead, undocumented or unspeakable.

Run by ``make check``. A file is as long as its subject; over 800 lines it probably has two. A function has at most 70
lines. Both are a ratchet: what is longer is listed with its length in ``tools/tidy-allowed.txt``, where numbers may
only go down (``--update`` lowers them and drops what is no longer needed, it never raises or adds). The same list
holds import circles of more than three files, by package (``circles.py``), private words in prose and as names, and
bare ``int`` parameters of a room (``ratchets.py``). Also refused: marks of unfinished work, names of package hosts,
modules that nothing imports, test files of one name (pytest imports them by it), settings without documentation and
metrics without one.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from circles import circles, common_package, import_graph, statements
from ratchets import PRIVATE_NAMES, PRIVATE_WORDS, ROOMS, bare_ints, private_names, private_words

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tools" / "tidy-allowed.txt"
FILE_LINES = 800
FUNCTION_LINES = 70
CIRCLE_FILES = 3
COUNTED = re.compile("(prose|name|int):")
"""Allowances that a change need not lower along with what it lowers: several changes at once would all touch them."""

CODE_FOLDERS = ("src", "tests", "tools", "bench", "conformance", "examples", "sim")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".sh", ".cfg", ".ini", ".json", ".xml", ".html", ""}

# Spelled in pieces, so that this file does not break its own rules.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b")
HOSTS = re.compile(
    "|".join(
        (
            "files.python" + "hosted",
            "py" + r"pi\.org",
            "repo" + r"1?\.maven",
            "registry" + r"\.npmjs",
            "crates" + r"\.io",
            "proxy" + r"\.golang",
        )
    )
)
PACKAGE_BEFORE_A_NAME = re.compile(r"""f["'](\w+\.)+\{""")
SELF = Path(__file__).resolve()

# Modules that are entered by name from outside: commands, plugins, scripts and what multiprocessing or Spark look up.
ENTRY_MODULES = {"millstream.cli.__main__", "millstream.testing.plugin"}


class Problem(NamedTuple):
    """One finding. ``size`` is its length or number, for the kinds of it that may be allowed."""

    where: str
    what: str
    size: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="lower the allowed lengths to what they are now")
    update = parser.parse_args().update
    allowed = read_allowed()
    paths = tracked_files()
    code = [path for path in paths if path.suffix == ".py"]
    exact = [problem for path in code for problem in too_long(path)] + large_circles(ROOT / "src", code)
    counted = spoken_privately(paths) + bare_parameters(ROOT / "src" / "millstream")
    if update:
        allowed = {
            problem.where: min(problem.size, allowed[problem.where])
            for problem in exact + counted
            if problem.where in allowed
        }
        write_allowed(allowed)
    problems = [problem for problem in exact + counted if problem.size > allowed.get(problem.where, 0)]
    problems += stale_allowances({where: size for where, size in allowed.items() if not COUNTED.match(where)}, exact)
    problems += [problem for path in paths for problem in forbidden_text(path)]
    problems += dead_modules(ROOT / "src", code)
    problems += namesakes(code)
    problems += undocumented_properties() + undocumented_metrics()
    for problem in problems:
        print(f"{problem.where}: {problem.what}")
    print(f"tidy: {len(problems)} problems in {len(code)} files" if problems else f"tidy: {len(code)} files in shape")
    return 1 if problems else 0


def tracked_files() -> list[Path]:
    """Files of the project, without what git ignores."""
    import subprocess

    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def too_long(path: Path) -> list[Problem]:
    """The file and its functions that pass the limits."""
    text = path.read_text(encoding="utf-8")
    name = str(path.relative_to(ROOT))
    count = text.count("\n")
    problems: list[Problem] = []
    if count > FILE_LINES:
        problems.append(Problem(name, f"{count} lines, at most {FILE_LINES}", count))
    for qualified, node in functions(ast.parse(text), ""):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_LINES:
            where = f"{name}::{qualified}"
            problems.append(Problem(where, f"{length} lines, at most {FUNCTION_LINES}", length))
    return problems


def functions(node: ast.AST, prefix: str) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function below ``node`` with its dotted name."""
    found: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((prefix + child.name, child))
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found += functions(child, f"{prefix}{child.name}.")
    return found


def stale_allowances(allowed: dict[str, int], lengths: list[Problem]) -> list[Problem]:
    """Allowances that are larger than needed: the ratchet has to be turned."""
    actual = {problem.where: problem.size for problem in lengths}
    return [
        Problem(where, f"is allowed {limit} and has {actual.get(where, 0)}; run tools/tidy.py --update")
        for where, limit in allowed.items()
        if actual.get(where, 0) < limit
    ]


def large_circles(source: Path, code: list[Path]) -> list[Problem]:
    """Import circles of more than three files: everybody who touches one file has to know the others."""
    sources = {module_name(path, source): path for path in code if path.is_relative_to(source)}
    return [
        Problem(
            f"circle:{common_package(circle)}",
            f"{len(circle)} files import each other in a circle, at most {CIRCLE_FILES}: {', '.join(circle)}",
            len(circle),
        )
        for circle in circles(import_graph(sources))
        if len(circle) > CIRCLE_FILES
    ]


def spoken_privately(paths: list[Path]) -> list[Problem]:
    """How often the product's code and the pages use words that only this project uses."""
    prose = [
        path for path in paths if path.suffix == ".md" or (path.is_relative_to(ROOT / "src") and path.suffix == ".py")
    ]
    files = {str(path.relative_to(ROOT)): private_words(path) for path in prose}
    named = {str(path.relative_to(ROOT)): private_names(path) for path in prose if path.suffix == ".py"}
    return [
        *_by_word("prose", "word", PRIVATE_WORDS, files),
        *_by_word("name", "name", PRIVATE_NAMES, named),
    ]


def _by_word(kind: str, what: str, words: Sequence[str], files: dict[str, Counter[str]]) -> list[Problem]:
    problems: list[Problem] = []
    for word in words:
        where = {name: found[word] for name, found in files.items() if found[word]}
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(where.items()))
        text = f"the private {what} “{word}” stands there {sum(where.values())} times: {listed}"
        problems.append(Problem(f"{kind}:{word.replace(' ', '-')}", text, sum(where.values())))
    return problems


def bare_parameters(source: Path) -> list[Problem]:
    """Parameters of public functions that say neither their type nor their unit, by room."""
    problems: list[Problem] = []
    for room in ROOMS:
        counts = {str(path.relative_to(source)): bare_ints(path) for path in sorted((source / room).rglob("*.py"))}
        listed = ", ".join(f"{name} ({count})" for name, count in counts.items() if count)
        what = f"{sum(counts.values())} parameters are a bare int and name no unit: {listed}"
        problems.append(Problem(f"int:{room}", what, sum(counts.values())))
    return problems


def forbidden_text(path: Path) -> list[Problem]:
    """Marks of unfinished work in code, and names of package hosts anywhere."""
    if path.suffix not in TEXT_SUFFIXES or path == SELF or path.name in ("LICENSE", "uv.lock"):
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []
    name = str(path.relative_to(ROOT))
    problems: list[Problem] = []
    for number, line in enumerate(lines, start=1):
        if path.suffix == ".py" and (mark := UNFINISHED.search(line)):
            problems.append(
                Problem(
                    f"{name}:{number}", f"{mark[1]} says that something is unfinished; finish it or describe the limit"
                )
            )
        if host := HOSTS.search(line):
            problems.append(Problem(f"{name}:{number}", f"{host[0]} names a package host"))
    return problems


def dead_modules(source: Path, code: list[Path]) -> list[Problem]:
    """Modules under ``source`` that nothing but tests imports or names; what ships for tests is exempt."""
    modules = {module_name(path, source): path for path in code if path.is_relative_to(source)}
    code = [path for path in code if not path.is_relative_to(ROOT / "tests")]
    mentioned: set[str] = set(ENTRY_MODULES)
    for path in code:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        own = module_name(path, source) if path.is_relative_to(source) else ""
        by_name = named_by_table(tree) if PACKAGE_BEFORE_A_NAME.search(text) else set[str]()
        mentioned |= (imports(tree, own, is_package=path.name == "__init__.py") | by_name) - {own}
    named = "\n".join(path.read_text(encoding="utf-8") for path in [*code, ROOT / "pyproject.toml"])
    return [
        Problem(str(path.relative_to(ROOT)), "is imported by nothing")
        for name, path in sorted(modules.items())
        if name not in mentioned
        and not name.startswith("millstream.testing")
        and path.name not in ("__init__.py", "__main__.py")
        and f'"{name}' not in named
    ]


def namesakes(code: list[Path]) -> list[Problem]:
    """Test files that pytest takes for the same module."""
    seen: dict[str, Path] = {}
    problems: list[Problem] = []
    for path in code:
        if path.relative_to(ROOT).parts[0] != "tests" or not path.name.startswith("test_"):
            continue
        first = seen.setdefault(path.name, path)
        if first is not path:
            problems.append(Problem(str(path.relative_to(ROOT)), f"has the name of {first.relative_to(ROOT)}"))
    return problems


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, own: str, *, is_package: bool) -> set[str]:
    """Every module name that an import in ``tree`` could mean."""
    found: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = own.split(".")
                kept = parents[: len(parents) - node.level + is_package]
                base = ".".join([*kept, base] if base else kept)
            found.add(base)
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def named_by_table(tree: ast.AST) -> set[str]:
    """Modules that a file imports by name: the literal start of an f-string (f"package.{word}") with its words."""
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    starts = {
        node.values[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[0], ast.Constant)
    }
    packages = [start for start in starts if isinstance(start, str) and re.fullmatch(r"(\w+\.)+", start)]
    return {package + word for package in packages for word in strings if word.isidentifier()}


def undocumented_properties() -> list[Problem]:
    """Settings whose documentation is missing or is no sentence."""
    sys.path.insert(0, str(ROOT / "src"))
    from millstream.config import NODE_PROPERTIES, TOPIC_PROPERTIES

    declared = [*NODE_PROPERTIES.values(), *TOPIC_PROPERTIES.values()]
    return [
        Problem(declaration.name, "has no documentation that ends like a sentence")
        for declaration in declared
        if not declaration.doc.endswith(".")
    ]


def undocumented_metrics() -> list[Problem]:
    """Metrics whose documentation is missing."""
    try:
        from millstream.telemetry.table import METRICS
    except ImportError:
        return []
    return [Problem(metric.name, "has no documentation") for metric in METRICS if not metric.doc.strip()]


def read_allowed() -> dict[str, int]:
    if not ALLOWED.exists():
        return {}
    entries = (line.split() for line in ALLOWED.read_text(encoding="utf-8").splitlines() if line and line[0] != "#")
    return {where: int(size) for size, where in entries}


def write_allowed(allowed: dict[str, int]) -> None:
    header = "# What is over the limits of tools/tidy.py. It may only become less: tools/tidy.py --update\n"
    ALLOWED.write_text(
        header + "".join(f"{size:>5} {where}\n" for where, size in sorted(allowed.items()) if size), encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
