"""Reports of Apache Kafka's integration tests are read as what they are: passed, failed, or aborted with the reason."""

import re

import pytest
from conformance.lists import FAILED, PASSED, SKIPPED, Outcome, aborted, must_pass

from conformance import kafka_integration

NAME = "org.apache.kafka.clients.T"


@pytest.fixture
def report(tmp_path):
    def written(*cases):
        path = tmp_path / "report.xml"
        path.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
        return kafka_integration.outcomes(path)

    return written


def case(name, inside="", seconds="1.5"):
    return f'<testcase name="{name}" classname="{NAME}" time="{seconds}">{inside}</testcase>'


def test_a_test_has_the_name_of_its_class_and_of_its_parameters(report):
    assert report(case("a(ClusterInstance)[1]")) == [Outcome("T.a(ClusterInstance)[1]", PASSED, 1.5)]


def test_a_failure_that_an_abort_caused_is_an_abort(report):
    cause = "timed out\nCaused by: org.opentest4j.TestAbortedException: inside: KafkaBroker.logManager\n at x"
    found = report(
        case("a()[1]", f'<failure message="timed out">{cause}</failure>'),
        case("b()[1]", '<error message="no  leader"/>'),
        case("c()[1]", "<skipped>org.opentest4j.TestAbortedException: setting: authorizer.class.name=X</skipped>"),
    )
    assert [(one.state, one.reason) for one in found] == [
        (SKIPPED, "inside: KafkaBroker.logManager"),
        (FAILED, "no leader"),
        (SKIPPED, "setting: authorizer.class.name=X"),
    ]


def test_a_test_that_reads_meters_of_its_own_jvm_is_an_abort(report):
    failed = '<failure message="metric not found">java.lang.AssertionError: metric not found at x</failure>'
    other = '<failure message="no such metric">java.lang.AssertionError: metric not found elsewhere</failure>'
    found = report(case("a()[1]", failed), case("b()[1]", other))
    assert [(one.state, one.reason.partition(" ")[0]) for one in found] == [(SKIPPED, "inside:"), (FAILED, "no")]


def test_the_second_of_two_equal_runs_is_not_counted(report):
    twin = "<skipped>org.opentest4j.TestAbortedException: twin: runs as isolated already</skipped>"
    assert [one.name for one in report(case("a()[1]"), case("a()[2]", twin))] == ["T.a()[1]"]


def test_a_failure_that_a_decision_explains_is_none():
    decisions = [("T.a*", "the controller is a part of each broker")]
    found = [kafka_integration.decided(Outcome(f"T.{name}()[1]", FAILED, reason="no"), decisions) for name in "ab"]
    assert [(one.state, one.reason) for one in found] == [
        (SKIPPED, "decision: the controller is a part of each broker"),
        (FAILED, "no"),
    ]
    passed = Outcome("T.a()[1]", PASSED)
    assert kafka_integration.decided(passed, decisions) == passed


def test_a_class_that_starts_a_cluster_and_is_neither_listed_nor_left_out_is_named():
    listed, left_out = "org.apache.kafka.clients.consumer.ShareConsumerTest", "kafka.api.AuthorizerTest"
    assert listed in kafka_integration.classes()
    assert kafka_integration.unlisted({listed, left_out, "org.example.NewTest"}) == ["org.example.NewTest"]


@pytest.mark.parametrize("suite", [kafka_integration.KafkaIntegration, kafka_integration.KafkaStreams])
def test_every_listed_test_is_of_a_class_that_runs_and_no_test_is_on_both_lists(suite):
    classes = {name.rpartition(".")[2] for name in suite.classes()}
    passing, aborting = must_pass(suite.name), aborted(suite.name)
    assert {name.partition(".")[0] for name in [*passing, *aborting]} <= classes
    assert not set(passing) & set(aborting)
    assert all(
        reason.partition(": ")[0] in ("inside", "setting", "feature", "security", "harness")
        for reason in aborting.values()
    )


def test_each_class_belongs_to_one_suite():
    both = [kafka_integration.KafkaIntegration.classes(), kafka_integration.KafkaStreams.classes()]
    assert sum(map(len, both)) == len(kafka_integration.classes())
    assert both[0] | both[1] == kafka_integration.classes()


def test_a_second_try_runs_the_methods_that_failed_and_no_others():
    (option,) = kafka_integration.only(["testClose"])
    pattern = option.removeprefix("--include-methodname=")
    assert re.fullmatch(pattern, f"{NAME}#testClose")
    assert not re.fullmatch(pattern, f"{NAME}#testCloseTwice")
    assert not re.fullmatch(pattern, f"{NAME}#untestClose")
