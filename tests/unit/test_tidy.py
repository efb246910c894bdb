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
    for kept in (tidy.text_of, tidy.tree_of):
        kept.cache_clear()
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


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(0.1)",
        "assert time.monotonic() - began < 5",
        "assert 0 < 10 > time.perf_counter() - began",
        "took = time.monotonic() - began; assert took / 2 < 5",
        "limit = time.monotonic() + 20",
        "done.result(10)",
        "run(command, timeout=30)",
        "subprocess.run(command, timeout=60)",
        "pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]",
        "PATIENCE_S = 5.0",
        "settings.register_profile('p', deadline=500)",
    ],
)
def test_waits_that_count_on_the_speed_of_the_machine_are_found_in_tests(tidy, line):
    (problem,) = tidy.hurried(put(tidy, "tests/unit/test_x.py", f"import time\n\n\ndef test_x():\n    {line}\n"))
    assert (problem.where, problem.size) == ("wait:tests/unit/test_x.py", 1)
    assert "line 5" in problem.what
    assert not tidy.hurried(put(tidy, "src/millstream/net/x.py", line))


@pytest.mark.parametrize(
    "line",
    [
        "until(lambda: done)",
        "assert time.monotonic() - began > 0.2",
        "assert time.thread_time() - began < 1",
        "took = time.monotonic() - began; assert told < took + 1",
        "done.result(60)",
        "subprocess.run(command, timeout=PATIENCE_S)",
        "child.wait(0.01)",
        "controller.bench.join(2)",
        "settings.register_profile('p', deadline=None)",
    ],
)
def test_waits_for_a_condition_and_measures_of_work_are_left_alone(tidy, line):
    assert not tidy.hurried(put(tidy, "tests/unit/test_x.py", line + "\n"))


def test_classes_of_many_fields_are_found_and_records_that_nobody_changes_are_not(tidy):
    fields = "".join(f"        self.f{number} = 0\n" for number in range(12))
    state = f"class Busy:\n    kind: int = 0\n\n    def __init__(self):\n{fields}"
    values = "".join(f"    f{number}: int\n" for number in range(20))
    put(tidy, "src/a/state.py", state)
    put(tidy, "src/a/values.py", f"class V(NamedTuple):\n{values}\n\nclass W(Struct, frozen=True):\n{values}")
    (problem,) = tidy.misshapen(tidy.ROOT / "src" / "a")
    assert (problem.where, problem.size) == ("fields:src/a/state.py::Busy", 13)


def test_a_file_that_lives_on_the_private_names_of_another_class_is_found(tidy):
    put(tidy, "src/a/of.py", "class Log:\n    def f(self): ...\n\n\ndef near(log: Log):\n    return log._end\n")
    put(tidy, "src/a/far.py", "def far(log: Log):\n    return log._end\n\n\ndef fair(log: Log):\n    return log.end\n")
    (problem,) = tidy.misshapen(tidy.ROOT / "src" / "a")
    assert (problem.where, problem.size) == ("satellite:src/a/far.py", 1)


def test_values_without_a_type_are_found_on_the_hot_paths_alone(tidy):
    put(tidy, "src/a/hot.py", '"""Produce 3/8."""\n\n\ndef f(x: Any, y: list[Any]) -> Any: ...\n')
    put(tidy, "src/a/cold.py", "def f(x: Any) -> Any: ...\n")
    (problem,) = tidy.misshapen(tidy.ROOT / "src" / "a")
    assert (problem.where, problem.size) == ("any:src/a/hot.py", 3)


def test_names_that_only_tests_use_are_found(tidy):
    code = [
        put(tidy, "src/p/a.py", "USED = 1\nUNUSED = 2\n\n\ndef asked(): ...\n\n\n@table\ndef kept(): ...\n"),
        put(tidy, "src/p/b.py", "from p.a import USED, asked\nprint(asked(USED))\n"),
        put(tidy, "tests/test_a.py", "from p.a import UNUSED\n"),
    ]
    assert [problem.where for problem in tidy.unused_names(tidy.ROOT / "src", code)] == ["unused:src/p/a.py::UNUSED"]


def test_a_module_that_only_its_package_imports_is_found(tidy):
    code = [
        put(tidy, "src/p/__init__.py", "from p import acts\nfrom p.a import A\nfrom p.b import B\n"),
        put(tidy, "src/p/acts.py", "register()\n"),
        put(tidy, "src/p/a.py", "class A: ...\n"),
        put(tidy, "src/p/b.py", "class B: ...\n"),
        put(tidy, "src/q.py", "from p import A\n"),
        put(tidy, "tests/test_b.py", "from p import B\n"),
    ]
    found = tidy.unused_behind_faces(tidy.ROOT / "src", code)
    assert [problem.where for problem in found] == ["unused:src/p/b.py"]


def test_heavy_words_are_counted_by_room(tidy):
    put(tidy, "src/a/net/x.py", '"""It begins anew."""\nanew = 1  # whatever\n')
    (problem,) = tidy.heavy_prose(tidy.ROOT / "src" / "a")
    assert (problem.where, problem.size) == ("words:net", 3)


def test_what_a_file_showed_is_kept_until_it_changes(tidy, monkeypatch):
    sources = sys.modules["sources"]
    monkeypatch.setattr(sources, "KEPT", tidy.ROOT / "kept")
    path = put(tidy, "src/a.py", "def f():\n" + "    x = 1\n" * 80)
    sources._found.cache_clear()
    assert tidy.long_functions(path) == [("f", 81)]
    sources.keep()
    sources._found.cache_clear()
    monkeypatch.setattr(tidy, "functions", lambda *_: pytest.fail("it is known"))
    assert tidy.long_functions(path) == [("f", 81)]
    monkeypatch.undo()
    sources._found.cache_clear()


def test_files_of_tests_say_what_they_hold_and_take_nothing_from_each_other(tidy):
    assert not tidy.untold(put(tidy, "tests/test_a.py", '"""A holds."""\n\nfrom support import helper\n'))
    assert not tidy.untold(put(tidy, "src/a.py", "x = 1\n"))
    found = tidy.untold(put(tidy, "tests/test_b.py", "from test_a import helper\n"))
    assert ["imports from" in problem.what for problem in found] == [True, False]
