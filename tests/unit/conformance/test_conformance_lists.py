"""A run of other people's suites is judged by lists that only grow, and a test that skips itself is no pass."""

import json

import pytest
from conformance.lists import FAILED, PASSED, SKIPPED, Outcome
from conformance.suites import ALL

from conformance import brokers, franz_go, junit, librdkafka, lists

TABLE = """
struct test tests[] = {
    /* Special MAIN test to hold over-all timings, etc. */
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0001_multiobj, 0),
    _TEST(0011_produce_batch,
          0,
          /* Produces a lot, of messages */
          _THRES(.ucpu = 40.0, .scpu = 8.0)),
    _TEST(0009_mock_cluster, TEST_F_LOCAL, TEST_BRKVER(0, 11, 0, 0)),
    _TEST(0045_remove, 0, TEST_BRKVER(0, 9, 0, 0), .scenario = "noautocreate"),
    _TEST(0049_close, TEST_F_SOCKEM, TEST_BRKVER(0, 9, 0, 0)),
    _TEST(0055_latency, TEST_F_KNOWN_ISSUE_WIN32),
    /* Manual tests */
    _TEST(8000_idle, TEST_F_MANUAL),
    {NULL}};
"""


def test_a_test_that_must_pass_breaks_the_run_when_it_fails_is_skipped_or_is_gone():
    outcomes = [Outcome("a", PASSED), Outcome("b", FAILED), Outcome("c", SKIPPED), Outcome("e", PASSED)]
    verdict = lists.judge(outcomes, ["a", "b", "c", "d"])
    assert verdict.broken == ("b", "c", "d")
    assert verdict.new == ("e",)
    assert not verdict.good


def test_a_run_of_a_few_tests_is_not_held_to_the_others():
    verdict = lists.judge([Outcome("a", PASSED)], ["a", "b"], asked=["a"])
    assert verdict.good


def test_a_list_grows_and_keeps_its_comments_and_names(tmp_path):
    (tmp_path / "s.txt").write_text("# why\nb\na\n")
    assert lists.grow("s", ["c", "a"], tmp_path) == 1
    assert (tmp_path / "s.txt").read_text() == "# why\na\nb\nc\n"
    assert lists.grow("s", [], tmp_path) == 0
    assert lists.must_pass("s", tmp_path) == ["a", "b", "c"]


def test_what_is_left_out_says_why(tmp_path):
    (tmp_path / "s.left-out.txt").write_text("# a comment\nsasl::*  authentication is not there yet\n")
    patterns = lists.left_out("s", folder=tmp_path)
    assert lists.reason_left_out("sasl::test_x[PLAIN]", patterns) == "authentication is not there yet"
    assert lists.reason_left_out("other", patterns) == ""
    (tmp_path / "s.3-brokers.left-out.txt").write_text("other  wants broker 0\n")
    assert lists.reason_left_out("other", lists.left_out("s", 3, tmp_path)) == "wants broker 0"
    assert lists.left_out("s", 3, tmp_path)[:-1] == patterns


def test_every_committed_list_belongs_to_a_suite_and_holds_nothing_that_is_left_out():
    names = {suite.name for suite in ALL}
    for path in lists.HERE.glob("*.txt"):
        assert path.name.split(".")[0] in names, path
    for suite in ALL:
        patterns = lists.left_out(suite.name)
        assert not [name for name in lists.must_pass(suite.name) if lists.reason_left_out(name, patterns)]


def test_how_the_peer_did_is_kept_by_suite_and_test(tmp_path):
    lists.record_peer(
        "4.3.1", "s", "1.0", "2026-11-21", [Outcome("a", PASSED), Outcome("b", FAILED, 1, "no")], tmp_path
    )
    lists.record_peer("4.3.1", "s", "1.0", "2026-11-22", [Outcome("b", SKIPPED, 1, "why")], tmp_path)
    recorded = lists.peer_results("4.3.1", tmp_path)
    assert lists.peer_state(recorded, "s", "a") == PASSED
    assert lists.peer_state(recorded, "s", "b") == SKIPPED
    assert lists.peer_state(recorded, "s", "c") == ""
    assert recorded["s"]["date"] == "2026-11-22"


def test_the_table_of_librdkafka_gives_the_tests_that_need_a_broker():
    entries = librdkafka.table(TABLE)
    assert [entry.name for entry in entries] == [
        *["0001_multiobj", "0011_produce_batch", "0045_remove", "0049_close", "0055_latency"]
    ]
    assert [entry.scenario for entry in entries] == ["default", "default", "noautocreate", "default", "default"]
    assert [entry.sockets for entry in entries] == [False, False, False, True, False]


def report_of(tmp_path, state, seconds):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"tests": {"0001_x": {"state": state, "duration": seconds}}}))
    return path


@pytest.mark.parametrize(
    ("state", "seconds", "output", "code", "expected"),
    [
        ("PASSED", 1.0, "[ do_test_x: PASS (1.00s) ]", 0, PASSED),
        ("PASSED", 1.0, "no subtests at all", 0, PASSED),
        ("PASSED", 1.0, "[ do_test_x: SKIP: needs authorization ]", 0, SKIPPED),
        ("PASSED", 1.0, "[ do_test_x: SKIP: needs y ]\n[ do_test_z: PASS (1.00s) ]", 0, PASSED),
        ("PASSED", 0.00002, "came back at once", 0, SKIPPED),
        ("PASSED", 0.0036, "asked for metadata", 0, PASSED),
        ("SKIPPED", 0.0, "", 0, SKIPPED),
        ("FAILED", 1.0, "", 1, FAILED),
        ("RUNNING", 1.0, "", -6, FAILED),
        ("PASSED", 1.0, "died afterwards", -11, FAILED),
        ("PASSED", 1.0, "did not end", None, FAILED),
    ],
)
def test_a_pass_of_librdkafka_is_more_than_its_word(tmp_path, state, seconds, output, code, expected):
    entry = librdkafka.Entry("0001_x", False, "default")
    outcomes = librdkafka.outcomes([entry], report_of(tmp_path, state, seconds), output, code, 45.0)
    assert [outcome.state for outcome in outcomes] == [expected]


def test_a_process_of_librdkafka_that_left_no_report_failed_with_its_last_words(tmp_path):
    entry = librdkafka.Entry("0001_x", False, "default")
    output = (
        '\x1b[31m### Test "0001_x" failed at t.c:7:f() at Sat Nov 21: ###\nExpected 1, not 2\n[0001_x / 1 s] later\n'
    )
    (outcome,) = librdkafka.outcomes([entry], tmp_path / "none.json", output, -6, 45.0)
    assert outcome.state == FAILED
    assert outcome.reason == "ended with -6: t.c:7:f(): Expected 1, not 2"


def test_a_test_that_pytest_could_not_take_down_has_failed(tmp_path):
    (tmp_path / "r.xml").write_text(
        '<testsuite><testcase classname="test.integration.test_a.TestX" name="t[gzip]" time="0.5"/>'
        '<testcase classname="test.integration.test_a.TestX" name="t[gzip]"><error message="left a thread"/></testcase>'
        '<testcase classname="test.integration.test_b" name="u"><skipped message="needs SASL"/></testcase></testsuite>'
    )
    assert junit.outcomes(tmp_path / "r.xml") == [
        Outcome("test_a::TestX::t[gzip]", FAILED, 0.0, "left a thread"),
        Outcome("test_b::u", SKIPPED, 0.0, "needs SASL"),
    ]


def test_error_lines_of_the_broker_come_with_their_stack():
    log = (
        "2026-11-20T21:54:07.123Z INFO  [shard 0] ready\n"
        "2026-11-20T21:54:08.123Z ERROR [shard 0] Fetch failed\nTraceback\n  ValueError\n"
        "2026-11-20T21:54:09.123Z WARN  [shard 0] slow\n"
    )
    assert brokers.error_lines(log) == [
        "2026-11-20T21:54:08.123Z ERROR [shard 0] Fetch failed\nTraceback\n  ValueError"
    ]


@pytest.mark.parametrize(
    ("line", "code", "expected"),
    [
        ("--- PASS: TestShareGroup (1.05s)", 0, ("passed", 1.05, "")),
        ("--- PASS: TestShareGroup (1.05s)", 1, ("failed", 1.05, "share_test.go:7: wrong")),
        ("--- SKIP: TestShareGroup (0.00s)", 0, ("skipped", 0.0, "share_test.go:7: wrong")),
        ("--- PASS: TestShareGroupETL (1.05s)", 0, ("failed", 0.0, "share_test.go:7: wrong")),
        ("", None, ("failed", 0.0, "not done in 9 s")),
    ],
)
def test_a_test_of_franz_go_is_judged_by_its_own_line(line, code, expected):
    found = franz_go.outcome("TestShareGroup", f"=== RUN\n    share_test.go:7: wrong\n{line}\n", code, 9)
    assert (found.state, found.seconds, found.reason) == expected


def test_the_tests_of_franz_go_that_ask_a_broker_are_told_by_what_they_call():
    source = """
func TestAlone(t *testing.T) {
	if true {
		t.Log("x")
	}
}

func TestAsks(t *testing.T) {
	topic, cleanup := tmpTopicPartitions(t, 1)
	defer cleanup()
}

func tmpTopicPartitions(tb testing.TB, n int) (string, func()) {
}
"""
    assert franz_go.asking(source) == ["TestAsks"]
