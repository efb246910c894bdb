"""The check of the code's shape finds what it is for."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tidy(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("tidy_under_test", ROOT / "tools" / "tidy.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tidy_under_test", module)
    monkeypatch.syspath_prepend(ROOT / "tools")
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "ALLOWED", tmp_path / "allowed.txt")
    return module


def put(tidy, name, text):
    path = tidy.ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_long_files_and_functions_are_found(tidy):
    body = "    x = 1\n" * 70
    path = put(tidy, "src/a.py", f"class A:\n  def short(self): ...\n\n  def long(self):\n{body}" + "\n" * 800)
    assert [problem.where for problem in tidy.too_long(path)] == ["src/a.py", "src/a.py::A.long"]
    assert not tidy.too_long(put(tidy, "src/b.py", "def f():\n    return 1\n"))


def test_an_allowance_may_only_shrink(tidy):
    tidy.write_allowed({"src/a.py": 600, "src/gone.py": 700})
    lengths = [tidy.Problem("src/a.py", "long", 550)]
    stale = tidy.stale_allowances(tidy.read_allowed(), lengths)
    assert [problem.where for problem in stale] == ["src/a.py", "src/gone.py"]
    assert not tidy.stale_allowances({"src/a.py": 550}, lengths)


def test_what_is_counted_may_be_less_than_it_is_allowed(tidy):
    assert [
        where for where in ("prose:told", "int:raft", "circle:p", "src/a.py::A.f") if tidy.COUNTED.match(where)
    ] == [
        "prose:told",
        "int:raft",
    ]


def test_a_circle_of_more_than_three_files_is_found_wherever_its_imports_stand(tidy):
    code = [
        put(tidy, "src/p/__init__.py", "from p.d import D\n"),
        put(tidy, "src/p/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B\n"),
        put(tidy, "src/p/b.py", "def late():\n    from .c import C\n"),
        put(tidy, "src/p/c.py", "from p import D as Renamed\n"),
        put(tidy, "src/p/d.py", "import p.a\n"),
        put(tidy, "src/p/e.py", "from . import d\n"),
        put(tidy, "src/p/f.py", "import p.g, p.h\n"),
        put(tidy, "src/p/g.py", "import p.h\n"),
        put(tidy, "src/p/h.py", "import p.f\n"),
    ]
    (found,) = tidy.large_circles(tidy.ROOT / "src", code)
    assert (found.where, found.size) == ("circle:p", 4)
    assert found.what.endswith("p.a, p.b, p.c, p.d")
    put(tidy, "src/p/c.py", "from q import D\n")
    assert not tidy.large_circles(tidy.ROOT / "src", code)


def test_private_words_are_counted_in_prose_and_as_names(tidy):
    words = [
        put(tidy, "docs/a.md", "Whoever is told, is\ntold.\n"),
        put(tidy, "src/a.py", '"""Told."""\ntold = 1  # looked at\nx = f"{told} told"\n'),
        put(tidy, "tests/a.py", "# told\n"),
    ]
    sizes = {problem.where: problem.size for problem in tidy.spoken_privately(words) if problem.size}
    assert sizes == {"prose:told": 4, "prose:whoever": 1, "prose:looked-at": 1, "name:told": 1}


def test_bare_int_parameters_of_public_functions_are_counted(tidy):
    text = """
class A:
    def __init__(self, term: int, size_bytes: int): ...
    def read(self, offset: int, name: str, *, end: "int | None" = None): ...
    def _own(self, offset: int): ...
class _B:
    def read(self, offset: int): ...
def wait(timeout_ms: int, count: int, epoch: int): ...
"""
    put(tidy, "src/millstream/raft/a.py", text)
    sizes = {problem.where: problem.size for problem in tidy.bare_parameters(tidy.ROOT / "src" / "millstream")}
    assert sizes.pop("int:raft") == 4
    assert not any(sizes.values())


def test_marks_of_unfinished_work_and_hosts_are_found(tidy):
    mark, host = "TO" + "DO", "py" + "pi.org"
    path = put(tidy, "src/a.py", f"x = 1  # {mark}: later\nurl = '{host}'\n")
    assert [problem.where for problem in tidy.forbidden_text(path)] == ["src/a.py:1", "src/a.py:2"]
    assert not tidy.forbidden_text(put(tidy, "docs/a.md", f"a {mark} list\n"))
    assert tidy.forbidden_text(put(tidy, "docs/b.md", f"see {host}\n"))


def test_a_module_that_only_tests_import_is_dead(tidy, monkeypatch):
    put(tidy, "pyproject.toml", "")
    used = put(tidy, "src/p/used.py", "")
    dead = put(tidy, "src/p/dead.py", "from p import dead\n")
    named = put(tidy, "src/p/named.py", "")
    start = put(tidy, "src/p/__init__.py", "from . import used\nlater = 'x'\nname = \"p.named\"\n")
    tabled = put(tidy, "src/p/tabled.py", "")
    table = put(tidy, "tools/table.py", "for file in ('tabled',):\n    __import__(f'p.{file}')\n")
    test = put(tidy, "tests/test_dead.py", "import p.dead\n")
    found = tidy.dead_modules(tidy.ROOT / "src", [used, dead, named, tabled, table, start, test])
    assert [problem.where for problem in found] == ["src/p/dead.py"]


def test_two_test_files_of_one_name_are_found(tidy):
    files = [put(tidy, f"tests/{folder}/test_it.py", "") for folder in ("unit", "process")]
    files.append(put(tidy, "tests/unit/other.py", ""))
    assert [problem.where for problem in tidy.namesakes(files)] == ["tests/process/test_it.py"]
