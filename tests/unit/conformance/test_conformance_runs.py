"""Programs of other people end in time, checks report what went wrong, and a run says what it means."""

import argparse
import subprocess

import pytest
from bench import processes
from conformance.lists import FAILED, PASSED, SKIPPED, Outcome
from conformance.suite import Context, Suite
from rich.console import Console
from rich.progress import Progress

from conformance import brokers, checks, lists, report, run, tools


def test_a_program_that_overstays_is_ended_with_all_that_it_started(tmp_path):
    assert tools.run_capped(["sh", "-c", "sleep 60 & echo $!; wait"], tmp_path / "log", 2.0) is None
    child = int((tmp_path / "log").read_text())
    assert processes.wait_gone([child]) == [], "its child runs on"


def test_a_program_that_ends_gives_its_code_and_its_words(tmp_path):
    command = ["sh", "-c", "cat; echo wrong >&2; exit 7"]
    assert tools.run_capped(command, tmp_path / "log", 20.0, stdin=b"given\n") == 7
    assert (tmp_path / "log").read_text() == "given\nwrong\n"


def test_a_missing_tool_is_named_with_its_package():
    with pytest.raises(tools.SuiteUnavailable, match=r"needs no-such-program .*apt-get install no-such-program"):
        tools.need("sh", "no-such-program")


def test_a_fetch_that_fails_leaves_nothing_and_can_be_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "CACHE", tmp_path)

    def fails(folder):
        (folder / "half").touch()
        raise tools.SuiteUnavailable("no network")

    with pytest.raises(tools.SuiteUnavailable):
        tools.cached("suite-1", fails)
    assert [path.name for path in tmp_path.iterdir()] == [".suite-1.lock"]
    made = tools.cached("suite-1", lambda folder: (folder / "whole").touch())
    assert [path.name for path in made.iterdir()] == ["whole"]
    assert tools.cached("suite-1", fails) == made


class Broker:
    bootstrap = "127.0.0.1:1"

    def revive(self):
        return False


def says_what_it_should(bench):
    assert bench.call(["cat"], stdin="hello") == "hello"


def ends_badly(bench):
    bench.call(["sh", "-c", "echo because >&2; exit 3"])


def does_not_end(bench):
    bench.call(["sleep", "60"], limit_s=0.2)


def test_a_check_fails_with_what_the_program_said(tmp_path):
    context = Context(None, set(), tmp_path, tmp_path / "s", lambda _: None)
    (tmp_path / "s").mkdir()
    suite = checks.Checks()
    found = [suite.one(context, Broker(), check) for check in (says_what_it_should, ends_badly, does_not_end)]
    assert [outcome.state for outcome in found] == [PASSED, FAILED, FAILED]
    assert "ended with 3: because" in found[1].reason
    assert "did not end in 0.2 s" in found[2].reason
    assert "because" in (tmp_path / "ends_badly.log").read_text()


class Three(Suite):
    name = about = "three"
    errors = ()

    def prepare(self):
        return "1"

    def names(self):
        return ["a", "b", "c"]

    def run(self, context):
        context.complaints += self.errors
        for name in sorted(context.chosen):
            yield Outcome(name, FAILED if name == "b" else PASSED)


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "OUTPUT", tmp_path)
    monkeypatch.setattr(lists, "must_pass", lambda suite: ["a"])
    monkeypatch.setattr(lists, "left_out", lambda suite, brokers: [("c", "is not there yet")])
    return argparse.Namespace(
        brokers=1,
        peer=None,
        only=[],
        fast=False,
        jobs=1,
        patience=1.0,
        update=False,
        second_try=False,
        verbose=False,
        recorded={},
    )


def run_three(given, suite=None):
    with Progress(console=Console(quiet=True)) as progress:
        return run.run_suite(suite or Three(), given, progress)


def test_a_run_leaves_out_what_it_must_and_is_good_when_what_must_pass_does(given):
    ran = run_three(given)
    assert {outcome.name: outcome.state for outcome in ran.outcomes} == {"a": PASSED, "b": FAILED, "c": SKIPPED}
    assert ran.verdict.good
    assert run.word(ran, given) == "[green]good[/]"


class LateB(Three):
    """``b`` passes when it is run for the second time."""

    def run(self, context):
        for name in sorted(context.chosen):
            (context.scratch / name).mkdir()
            yield Outcome(name, FAILED if name == "b" and context.logs.name != "second-try" else PASSED)


@pytest.mark.parametrize(("suite", "good"), [(LateB, True), (Three, False)])
def test_what_must_pass_and_failed_runs_a_second_time(given, monkeypatch, suite, good):
    monkeypatch.setattr(lists, "must_pass", lambda name: {"a", "b"})
    assert not run_three(given, suite()).verdict.good
    given.second_try = True
    ran = run_three(given, suite())
    assert (ran.verdict.good, ran.second_try) == (good, ("b",) if good else ())
    assert [outcome.name for outcome in ran.outcomes if outcome.state != SKIPPED] == ["a", "b"]


def test_a_left_out_test_runs_when_it_is_asked_for_by_name(given):
    given.only = ["c"]
    ran = run_three(given)
    assert ran.outcomes == [Outcome("c", PASSED)]
    assert ran.verdict.good, "a is not asked for"


def test_an_error_line_of_the_broker_spoils_a_run_in_which_every_test_passed(given):
    suite = Three()
    suite.errors = ("ERROR Fetch failed",)
    assert run.word(run_three(given, suite), given) == "[red]1 errors logged[/]"


def test_a_suite_that_cannot_be_had_says_why_and_is_not_run(given):
    suite = Three()

    def prepare():
        raise tools.SuiteUnavailable("needs gcc")

    suite.prepare = prepare
    ran = run_three(given, suite)
    assert (ran.unavailable, ran.outcomes) == ("needs gcc", [])
    assert run.word(ran, given) == "[yellow]not run[/]"


def test_a_broker_is_told_what_suites_take_for_granted_and_its_errors_are_kept(tmp_path):
    with brokers.running(None, {"auto.create.topics.enable": "false"}, tmp_path / "broker.log") as broker:
        assert broker.bootstrap.startswith("127.0.0.1:")
        assert broker.complaints() == []
        assert not broker.revive()
        broker.kill()
        assert broker.revive()
    assert "serves after" in (tmp_path / "broker.log").read_text()


@pytest.mark.parametrize("options", [[], ["--fast"]])
def test_a_run_whose_suite_cannot_be_had_is_not_a_success(options, monkeypatch, tmp_path):
    def prepare():
        raise tools.SuiteUnavailable("needs gcc")

    suite = Three()
    monkeypatch.setattr(run, "ALL", [suite])
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    monkeypatch.setattr(run, "OUTPUT", tmp_path)
    assert run.main(options) == 0
    suite.prepare = prepare
    assert run.main(options) == 2


def test_npm_is_found_where_the_machine_has_none(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    said = subprocess.run([*tools.npm(), "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout[0].isdigit()


def test_what_is_kept_of_a_whole_run_is_not_replaced_by_a_part_of_it(given, tmp_path):
    run.keep([run_three(given)], given)
    given.only = ["c"]
    run.keep([run_three(given)], given)
    kept = report.kept(tmp_path / "last.json")
    assert {outcome["name"] for outcome in kept["three"]["outcomes"]} == {"a", "b", "c"}


def test_the_documents_table_shows_both_brokers_every_failure_and_why_tests_are_not_run(given, tmp_path):
    run.keep([run_three(given)], given)
    recorded = {"three": {"tests": {"a": "passed", "b": "failed: odd"}}}
    text = report.table(report.kept(tmp_path / "last.json"), recorded, ["three"], "Kafka")
    assert "| three | 1 | 1 | 1 | 1 | 1 | 1 | 1 |" in text
    assert "- three `b`:  (Kafka: failed)" in text
    assert "- three: 1 × is not there yet" in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.write_document(text, page)
    report.write_document(text, page)
    assert page.read_text().startswith(f"before\n{report.BEGIN}\n\n| suite |")
    assert "old" not in page.read_text()
    assert page.read_text().endswith(f"{report.END}\nafter\n")
