"""Every script that is started as a process finds what it imports; no path is there that only a test run has.

``python tests/spark/driver.py`` has the script's own folder on its path and what is installed, ``python -m bench.run``
the checkout. Pytest adds the folders of all tests, so a test that imports the same modules shows nothing. The imports
are read, not run: those within functions count, too.
"""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tests", "bench", "conformance", "examples", "sim", "tools")
NOT_INSTALLED = {"atheris": "make fuzz installs it where it can"}
BY_MODULE = {"tests/differential": ("", "tests")}
"""Folders whose scripts are started with ``-m``, and the path that they are given beside it (``Makefile``)."""


@cache
def scripts():
    """Modules that do something when they are the main one, and those that tests name: scripts as ``"driver.py"``, a
    broker's hooks as ``"module:function"``.
    """
    found = set()
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if '\nif __name__ == "__main__":' in text:
            found.add(path)
        for name in re.findall(r'"(\w+\.py|[a-z_]+:[a-z_]+)"', text):
            found.add(path.with_name(re.sub(r":\w+$", ".py", name)))
    return sorted(path for path in found if path.exists() and not path.name.startswith(("__init__", "test_")))


@cache
def statements_of(path):
    """The imports of a module, and the statements that are a call or an assignment, wherever they stand."""
    found, left = [], [ast.parse(path.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Expr | ast.Assign):
            found.append(node)
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(node, name, None)
            left += inner if isinstance(inner, list) else ()
    return found


def first_path(script):
    folder = script.parent
    named = BY_MODULE.get(str(folder.relative_to(ROOT)))
    if named is not None:
        return [ROOT / name for name in named]
    return [ROOT] if (folder / "__init__.py").exists() else [folder]


def added_paths(path):
    """What a module adds to ``sys.path`` itself."""
    names = {"Path": Path, "__file__": str(path), "str": str, "ROOT": ROOT}
    for node in statements_of(path):
        match node:
            case ast.Expr(ast.Call(ast.Attribute(ast.Attribute(attr="path"), "insert" | "append"), [*_, given])):
                places = [given]
            case ast.Assign(targets=[ast.Subscript(value=ast.Attribute(attr="path"))], value=ast.List(elts=places)):
                pass
            case _:
                continue
        for place in places:
            try:
                yield Path(eval(compile(ast.Expression(place), str(path), "eval"), names))
            except NameError:
                continue  # a place that is known at run time only


def imported(path, package):
    """Names of the modules that a module imports."""
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield module, False
            yield from ((f"{module}.{alias.name}", True) for alias in node.names)


@cache
def find(name, path):
    """The file of a module in one of the folders of ``path``, the folder of a package without one, or None."""
    for folder in path:
        place = folder.joinpath(*name.split("."))
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.exists():
                return file
        if place.is_dir() and any(place.glob("*.py")):
            return place
    return None


@cache
def installed(name):
    """Whether a package is there for every process."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return False
    places = [spec.origin] if spec.origin and spec.has_location else list(spec.submodule_search_locations or ())
    ours = [Path(place).resolve() for place in places if Path(place).resolve().is_relative_to(ROOT)]
    return not ours or all(place.relative_to(ROOT).parts[0] in ("src", ".venv") for place in ours)


def missing(script):
    """The imports that would fail when a script is started."""
    path, seen, found = tuple(first_path(script)), set(), []
    left = [(script, ".".join(script.parent.relative_to(ROOT).parts))]
    while left:
        module, package = left.pop()
        if module in seen or module.is_dir():
            continue
        seen.add(module)
        path += tuple(added for added in added_paths(module) if added not in path)
        for name, may_be_attribute in imported(module, package):
            if name.split(".")[0] == "millstream":
                continue
            file = find(name, path)
            if file is not None:
                left.append((file, name if file.name == "__init__.py" else name.rpartition(".")[0]))
            elif not may_be_attribute and name.split(".")[0] not in NOT_INSTALLED and not installed(name.split(".")[0]):
                found.append(f"{module.relative_to(ROOT)} imports {name}")
    return found


def test_each_script_finds_its_imports():
    found = {str(script.relative_to(ROOT)): missing(script) for script in scripts()}
    assert not {script: lacking for script, lacking in found.items() if lacking}


def test_a_module_that_only_a_test_run_finds_is_missing():
    beside = ROOT / "tests" / "spark" / "spark_support.py"
    assert "tests/spark/spark_support.py imports waits" in missing(beside)
    assert {"once_driver.py", "reader_duckdb.py", "fault_points.py"} <= {path.name for path in scripts()}


def test_a_main_program_starts_when_everything_of_its_module_is_defined():
    """What follows ``if __name__ == "__main__":`` does not exist yet when the program runs."""
    folders = ("src", *FOLDERS)
    late = []
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        starts = [
            index for index, one in enumerate(body) if isinstance(one, ast.If) and "__main__" in ast.dump(one.test)
        ]
        if starts and starts[0] != len(body) - 1:
            late.append(str(path.relative_to(ROOT)))
    assert not late
