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
    path = put(tidy, "src/a.py", f"class A:\n  def short(self): ...\n\n  def long(self):\n{body}" + "\n" * 500)
    assert [problem.where for problem in tidy.too_long(path)] == ["src/a.py", "src/a.py::A.long"]
    assert not tidy.too_long(put(tidy, "src/b.py", "def f():\n    return 1\n"))


def test_an_allowance_may_only_shrink(tidy):
    tidy.write_allowed({"src/a.py": 600, "src/gone.py": 700})
    lengths = [tidy.Problem("src/a.py", "long", 550)]
    stale = tidy.stale_allowances(tidy.read_allowed(), lengths)
    assert [problem.where for problem in stale] == ["src/a.py", "src/gone.py"]
    assert not tidy.stale_allowances({"src/a.py": 550}, lengths)


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
