"""The code's shape as a check: what is too long, dead, undocumented or unspeakable.

Run by ``make check``. A file is as long as its subject; over 800 lines it probably has two. A function has at most 70
lines. Both are a ratchet: what is longer is listed with its length in ``tools/tidy-allowed.txt``, where numbers may
only go down (``--update`` lowers them and drops what is no longer needed, it never raises or adds). The same list
holds import circles of more than three files, by package (``circles.py``), waits of tests that count on the speed of
the machine, by file (``fixed_waits.py``), classes of many fields, files that belong to another file's class and untyped
values on the hot paths (``shapes.py``), names and modules that only tests use, private and heavy words in prose and as
names, and bare ``int`` parameters of a room (``ratchets.py``).

Also refused: marks of unfinished work, names of package hosts, modules that nothing imports, test files of one name
(pytest imports them by it), that import from each other or do not say what they hold, settings without documentation
and metrics without one.
"""

from __future__ import annotations

import argparse
import ast
import gc
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from circles import circles, common_package, import_graph, statements
from fixed_waits import EXEMPT, fixed_waits
from ratchets import PRIVATE_NAMES, PRIVATE_WORDS, ROOMS, bare_ints, heavy_words, private_names, private_words
from shapes import FIELDS_MAX, large_classes, satellites, untyped
from sources import keep, per_file, text_of, tree_of

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tools" / "tidy-allowed.txt"
FILE_LINES = 800
FUNCTION_LINES = 70
CIRCLE_FILES = 3
COUNTED = re.compile("(prose|name|int|words|fields|satellite|any):")
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
PUBLIC = tuple(f"millstream.{name}" for name in ("client", "diaspora", "events", "registry", "spark", "testing"))
"""Packages whose ``__init__`` is what users import from."""
ENTRY_MODULES = {"millstream.cli.__main__", "millstream.testing.plugin"}


class Problem(NamedTuple):
    """One finding. ``size`` is its length or number, for the kinds of it that may be allowed."""

    where: str
    what: str
    size: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--update", action="store_true", help="lower the allowed lengths to what they are now")
    update = parser.parse_args().update
    gc.disable()  # syntax trees have no cycles, and there are millions of nodes
    allowed = read_allowed()
    paths = tracked_files()
    code = [path for path in paths if path.suffix == ".py"]
    exact = [problem for path in code for problem in too_long(path)] + large_circles(ROOT / "src", code)
    exact += [problem for path in code for problem in hurried(path)]
    counted = spoken_privately(paths) + bare_parameters(ROOT / "src" / "millstream")
    counted += heavy_prose(ROOT / "src" / "millstream") + misshapen(ROOT / "src" / "millstream")
    exact += unused_names(ROOT / "src", code) + unused_behind_faces(ROOT / "src", code)
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
    problems += [problem for path in code for problem in untold(path)]
    problems += undocumented_properties() + undocumented_metrics()
    keep()
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
    text = text_of(path)
    name = str(path.relative_to(ROOT))
    count = text.count("\n")
    problems: list[Problem] = []
    if count > FILE_LINES:
        problems.append(Problem(name, f"{count} lines, at most {FILE_LINES}", count))
    for qualified, length in long_functions(path):
        problems.append(Problem(f"{name}::{qualified}", f"{length} lines, at most {FUNCTION_LINES}", length))
    return problems


@per_file
def long_functions(path: Path) -> list[tuple[str, int]]:
    """(dotted name, lines) of the functions that pass the limit."""
    lengths = [
        (qualified, (node.end_lineno or node.lineno) - node.lineno + 1)
        for qualified, node in functions(tree_of(path), "")
    ]
    return [(qualified, length) for qualified, length in lengths if length > FUNCTION_LINES]


def hurried(path: Path) -> list[Problem]:
    """What in a test counts on the speed of the machine. Allowed is what gives up on purpose, by file."""
    name = str(path.relative_to(ROOT))
    if not name.startswith(("tests/", "src/millstream/testing/")) or name in EXEMPT:
        return []
    found = fixed_waits(path)
    listed = "; ".join(f"line {wait.line} {wait.what}" for wait in found)
    return [Problem(f"wait:{name}", f"counts on the speed of the machine: {listed}", len(found))] if found else []


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


def heavy_prose(source: Path) -> list[Problem]:
    """Words that a reader stumbles over, by room."""
    problems: list[Problem] = []
    for room in sorted(path for path in source.iterdir() if path.is_dir() and path.name != "__pycache__"):
        counts = {str(path.relative_to(room)): heavy_words(path) for path in sorted(room.rglob("*.py"))}
        most = sorted(counts.items(), key=lambda entry: -entry[1])[:5]
        listed = ", ".join(f"{name} ({count})" for name, count in most if count)
        what = f"{sum(counts.values())} words for which there is a plainer one (ratchets.HEAVY_WORDS), most in {listed}"
        problems.append(Problem(f"words:{room.name}", what, sum(counts.values())))
    return problems


def misshapen(source: Path) -> list[Problem]:
    """Classes of too many fields, files that belong to another's class, and values without a type on the hot paths."""
    problems: list[Problem] = []
    for path in sorted(source.rglob("*.py")):
        if path.relative_to(source).parts[0] == "testing" or "messages" in path.parts:
            continue
        name = str(path.relative_to(ROOT))
        for qualified, count in large_classes(path):
            what = f"{count} fields, at most {FIELDS_MAX}: it is two classes"
            problems.append(Problem(f"fields:{name}::{qualified}", what, count))
        if found := satellites(path):
            what = f"belongs to another file's class, whose private names they use: {', '.join(found)}"
            problems.append(Problem(f"satellite:{name}", what, len(found)))
        if count := untyped(path):
            problems.append(Problem(f"any:{name}", f"{count} values on the paths of produce and fetch are Any", count))
    return problems


def unused_names(source: Path, code: list[Path]) -> list[Problem]:
    """Constants, functions and classes of a module that no code but tests names a second time."""
    product = [path for path in code if not path.is_relative_to(ROOT / "tests")]
    counts = Counter(word for path in product for word in identifiers(path))
    problems: list[Problem] = []
    for path in product:
        if not path.is_relative_to(source) or "messages" in path.parts or "testing" in path.parts:
            continue
        name = str(path.relative_to(ROOT))
        problems += [
            Problem(f"unused:{name}::{found}", "is used by nothing but tests", 1)
            for found in top_names(path)
            if counts[found] == 1
        ]
    return problems


@per_file
def identifiers(path: Path) -> list[str]:
    """The words of the file; one that stands there more than once is listed twice."""
    counts = Counter(re.findall(r"\b[A-Za-z_]\w*\b", text_of(path)))
    return [word for word, count in counts.items() for _ in range(min(count, 2))]


@per_file
def top_names(path: Path) -> list[str]:
    """What a module defines by an assignment, as a function or as a class; not what Python or a decorator keeps."""
    found: list[str] = []
    for node in tree_of(path).body:
        names: list[str] = []
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.decorator_list:
            names = [node.name]
        found += [name for name in names if not name.startswith("__") and len(name) > 1]
    return found


def unused_behind_faces(source: Path, code: list[Path]) -> list[Problem]:
    """Modules that only their package's ``__init__`` imports, and whose names nothing but tests takes from there."""
    modules = {module_name(path, source): path for path in code if path.is_relative_to(source)}
    others = [path for path in code if not path.is_relative_to(source) and not path.is_relative_to(ROOT / "tests")]
    graph = import_graph(modules | {f"outside {path}": path for path in others})
    used = {
        wanted
        for name, found in graph.items()
        if name not in modules or modules[name].name != "__init__.py"
        for wanted in found
    }
    return [
        Problem(f"unused:{path.relative_to(ROOT)}", "is imported by its package alone", 1)
        for name, path in sorted(modules.items())
        if name not in used
        and path.name != "__init__.py"
        and not name.startswith(PUBLIC)
        and behind_face(modules, name)
    ]


def behind_face(modules: dict[str, Path], name: str) -> bool:
    """Whether the ``__init__`` of the module's package takes names from it; a module that is imported itself acts."""
    package = name.rpartition(".")[0]
    face = modules.get(package)
    if face is None:
        return False
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.module == name or (node.level and f"{package}.{node.module}" == name))
        for node in tree_of(face).body
    )


def forbidden_text(path: Path) -> list[Problem]:
    """Marks of unfinished work in code, and names of package hosts anywhere."""
    if path.suffix not in TEXT_SUFFIXES or path == SELF or path.name in ("LICENSE", "uv.lock"):
        return []
    try:
        found = forbidden_lines(path)
    except UnicodeDecodeError:
        return []
    return [Problem(f"{path.relative_to(ROOT)}:{number}", what) for number, what in found]


@per_file
def forbidden_lines(path: Path) -> list[tuple[int, str]]:
    """(line, what is wrong with it)."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text_of(path).splitlines(), start=1):
        if path.suffix == ".py" and (mark := UNFINISHED.search(line)):
            found.append((number, f"{mark[1]} says that something is unfinished; finish it or describe the limit"))
        if host := HOSTS.search(line):
            found.append((number, f"{host[0]} names a package host"))
    return found


def dead_modules(source: Path, code: list[Path]) -> list[Problem]:
    """Modules under ``source`` that nothing but tests imports or names; what ships for tests is exempt."""
    modules = {module_name(path, source): path for path in code if path.is_relative_to(source)}
    code = [path for path in code if not path.is_relative_to(ROOT / "tests")]
    mentioned: set[str] = set(ENTRY_MODULES)
    for path in code:
        own = module_name(path, source) if path.is_relative_to(source) else ""
        mentioned |= mentions(path, own, is_package=path.name == "__init__.py") - {own}
    named = "\n".join(text_of(path) for path in [*code, ROOT / "pyproject.toml"])
    return [
        Problem(str(path.relative_to(ROOT)), "is imported by nothing")
        for name, path in sorted(modules.items())
        if name not in mentioned
        and not name.startswith("millstream.testing")
        and path.name not in ("__init__.py", "__main__.py")
        and f'"{name}' not in named
    ]


@per_file
def mentions(path: Path, own: str, *, is_package: bool) -> set[str]:
    """Modules that the file imports, by a statement or by a table of names."""
    by_name = named_by_table(tree_of(path)) if PACKAGE_BEFORE_A_NAME.search(text_of(path)) else set[str]()
    return imports(tree_of(path), own, is_package=is_package) | by_name


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


def untold(path: Path) -> list[Problem]:
    """A file of tests says first what behaviour it holds, and takes nothing from another: what they share has a place
    of its own, which a reader finds without reading tests.
    """
    if path.relative_to(ROOT).parts[0] != "tests":
        return []
    name = str(path.relative_to(ROOT))
    problems = [
        Problem(name, f"imports from {module}, a file of tests")
        for module in imports(tree_of(path), "", is_package=False)
        if module.startswith("test_") and "." not in module
    ]
    if path.name.startswith("test_") and ast.get_docstring(tree_of(path)) is None:
        problems.append(Problem(name, "does not say in its first line what behaviour it holds"))
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
    return {package + word for package in packages for word in strings if re.fullmatch(r"\w+(\.\w+)*", word)}


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
