"""Processes of a run share what was collected once, and nothing that happens in one of them is lost."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from forks import in_groups

TESTS = Path(__file__).parents[1]

SUITE = """
import os, pathlib, warnings
import pytest

pathlib.Path("collected").open("a").write(f"{os.getpid()}\\n")

@pytest.fixture(scope="session")
def shared():
    pathlib.Path("made").open("a").write(f"{os.getpid()}\\n")
    yield
    pathlib.Path("ended").open("a").write(f"{os.getpid()}\\n")

def played(name):
    pathlib.Path("played").open("a").write(f"{os.getpid()} {name}\\n")

@pytest.mark.parametrize("number", range(40))
def test_short(number, shared, tmp_path):
    played("short")
    assert tmp_path.is_dir()

@pytest.mark.process
@pytest.mark.parametrize("number", range(5))
def test_long(number):
    played(f"long-{pathlib.Path(__file__).stem}")
"""
FAILING = """
def test_it(capfd):
    print("what it said")
    os.write(2, b"to its descriptor\\n")
    assert 1 == 2
"""
DYING = """
@pytest.mark.process
def test_dies():
    os._exit(3)

@pytest.mark.process
@pytest.mark.parametrize("number", range(3))
def test_after(number):
    played("after")
"""
FLAKY = """
def test_it():
    played("tried")
    assert pathlib.Path("played").read_text().count("tried") > 1, "a busy machine"
"""
WARNING = """
def test_it():
    warnings.warn("of a test", UserWarning)
"""


def run(place, *options, **files):
    """(exit code, output) of a run of these modules in two processes."""
    for name, text in files.items():
        (place / f"test_{name}.py").write_text(SUITE + text)
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", os.devnull, f"--rootdir={place}", "--forks", "2"]
    command += ["-p", "no:schemathesis", "-p", "no:anyio", "-W", "ignore::pytest.PytestUnknownMarkWarning", *options]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """(directory, exit code, output) of a run that meets everything."""
    place = tmp_path_factory.mktemp("played")
    files = {"a": "", "failing": FAILING, "dying": DYING, "flaky": FLAKY, "warning": WARNING}
    return place, *run(place, "--reruns", "1", "-p", "no:randomly", **files)


def lines(place):
    return place.read_text().split("\n")[:-1]


def test_every_test_runs_once_in_one_of_the_processes_and_is_collected_once(played):
    place, code, output = played
    assert code == 1
    assert re.search("2 failed, 230 passed, 1 warning, [0-9]+ rerun", output), output[-200:]
    assert len(set(lines(place / "collected"))) == 1
    shown = [line.split() for line in lines(place / "played")]
    assert [name for _, name in shown].count("short") == 200
    assert len({pid for pid, name in shown if name == "short"}) >= 2


def test_a_module_with_processes_stays_in_one(played):
    shown = [line.split() for line in lines(played[0] / "played")]
    homes = {}
    for pid, name in shown:
        if name.startswith("long"):
            homes.setdefault(name, set()).add(pid)
    assert len(homes) == 5 and all(len(pids) == 1 for pids in homes.values())


def test_a_failure_is_told_with_what_was_said(played):
    output = played[2]
    assert "assert 1 == 2" in output
    assert "what it said" in output and "to its descriptor" in output
    assert "FAILED test_failing.py::test_it" in output


def test_a_process_that_dies_fails_its_test_alone(played):
    output = played[2]
    assert "FAILED test_dying.py::test_dies" in output
    assert "the process that ran this test ended with 3" in output
    assert sum(line.endswith(" after") for line in lines(played[0] / "played")) == 3


def test_what_fails_is_run_again_in_its_process_where_that_is_asked_for(played):
    tried = [line for line in lines(played[0] / "played") if line.endswith(" tried")]
    assert len(tried) == 2 and tried[0] == tried[1]
    assert "FAILED test_flaky" not in played[2]


def test_a_warning_is_told_once(played):
    assert played[2].count("UserWarning: of a test") == 1


def test_a_run_stops_at_the_first_failure_if_it_shall(tmp_path):
    code, output = run(tmp_path, "-x", "-p", "no:randomly", a=FAILING, b="")
    assert code == 1 and "stopping after 1 failures" in output


def test_what_cannot_be_collected_is_told_and_nothing_is_run(tmp_path):
    code, output = run(tmp_path, a="", b="import no_such_module")
    assert code == 2 and "no_such_module" in output
    assert not (tmp_path / "played").exists()


def test_a_fixture_of_the_session_is_made_and_ended_once_in_a_process(tmp_path):
    code, output = run(tmp_path, "-k", "short", a="")
    assert code == 0 and "40 passed" in output
    made = lines(tmp_path / "made")
    assert 1 <= len(made) <= 2 and sorted(made) == sorted(lines(tmp_path / "ended"))


@dataclass(frozen=True)
class Item:
    path: Path
    number: int
    marker: str = ""

    def get_closest_marker(self, name):
        return name == self.marker


def module(name, count, marker=""):
    return [Item(Path(name), number, marker) for number in range(count)]


def test_long_tests_come_first_and_those_on_spark_together():
    unit, few, many = module("unit", 9), module("few", 3, "process"), module("many", 40, "process")
    spark = [module("spark_a", 5, "spark"), module("spark_b", 7, "spark")]
    long, short = in_groups([*unit, *few, *spark[0], *many, *spark[1]])
    assert long == [[*spark[0], *spark[1]], many, few]
    assert short == unit
    assert in_groups(unit) == ([], unit)
