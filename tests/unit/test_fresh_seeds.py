"""What a fresh seed finds is never tried again: a second try would draw another seed, and hide it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

DRAWN_ELSEWHERE = re.compile(r"SystemRandom|randomly_seed|random\.Random\(\)|\bRandom\(\)|from_bytes\(os\.urandom")
"""How a test could draw a seed that no failure names."""

FAILING = """
import pathlib

def test_it(fresh_seed):
    pathlib.Path("drawn").open("a").write(f"{fresh_seed}\\n")
    assert False

def test_of_time():
    tried = pathlib.Path("tried")
    tried.open("a").write("tried\\n")
    assert tried.read_text().count("tried") > 1, "a busy machine"
"""


def run(directory, *options, **environment):
    directory.joinpath("test_two.py").write_text(FAILING)
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": "", **environment}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", os.devnull, f"--rootdir={directory}", "-rR"]
    command += ["-p", "no:schemathesis", "-p", "no:anyio"]  # what they import takes longer than the tests
    ended = subprocess.run(
        [*command, *options, "test_two.py"], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    return ended.stdout + ended.stderr, (directory / "drawn").read_text().split()


def test_a_failure_of_a_fresh_seed_stands_where_others_are_run_again(tmp_path):
    output, drawn = run(tmp_path, "--reruns", "1", "--randomly-seed=17")
    assert "1 failed, 1 passed, 1 rerun" in output
    assert drawn == ["17"]
    assert "RERUN test_two.py::test_of_time" in output


def test_a_failure_of_a_fresh_seed_stands_at_the_second_try_of_a_run(tmp_path):
    _, first = run(tmp_path)
    output, drawn = run(tmp_path, "--last-failed", MILLSTREAM_SECOND_TRY="1")
    assert "a finding of a fresh seed stands" in output
    assert drawn == first, "nothing was drawn"
    assert "1 passed, 1 error" in output


@pytest.mark.parametrize("options", [(), ("-p", "no:rerunfailures"), ("-p", "no:randomly")], ids=" ".join)
def test_a_failure_names_the_option_that_draws_the_seed_again(tmp_path, options):
    output, (seed,) = run(tmp_path, *options)
    assert f"--randomly-seed={seed} draws the same again" in output


def test_no_test_draws_a_seed_in_another_way():
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if path != Path(__file__)]
    assert len(files) > 500
    assert [str(path) for path in files if DRAWN_ELSEWHERE.search(path.read_text())] == []
