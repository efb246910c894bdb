"""Other people's administrators on groups: their libraries and tools list, describe, move and delete, unmodified.

``pytest tests/conformance/test_group_tools.py --peer kafka`` runs the same against a real Apache Kafka.
"""

import pytest
from bench.peers.kafka import CONSUMER_GROUP_COMMAND, java_tool
from group_wire import Line, Member, assignment, commit, describe, fetch, stable, subscription, wait_for_coordinator

from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_groups import DeleteGroupsRequest

pytestmark = pytest.mark.filterwarnings("default")

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
TIMEOUT_S = 120


@pytest.fixture
def line(group_bootstrap):
    with Line(group_bootstrap) as made:
        yield made


@pytest.fixture
def busy(people):
    """A group that works on topic t."""
    member = people("static", protocols={"range": subscription("t")}, session_ms=120_000)
    stable(member, assigned=assignment("t", 0, 1, 2))
    assert member.commit({T0: 1}) is ErrorCode.NONE
    return member


@pytest.mark.process
def test_confluents_admin_works_on_groups(group_bootstrap, line, busy):
    from confluent_kafka import (
        ConsumerGroupState,
        ConsumerGroupTopicPartitions,
        ConsumerGroupType,
        KafkaException,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": group_bootstrap})

    def offsets(group):
        (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        return {(p.topic, p.partition): p.offset for p in future.result(TIMEOUT_S).topic_partitions}

    moved = [TopicPartition("t", 0, 5), TopicPartition("t", 1, 6)]
    (altered,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("confluent", moved)]).values()
    assert all(p.error is None for p in altered.result(TIMEOUT_S).topic_partitions)
    assert offsets("confluent") == {T0: 5, T1: 6}
    (refused,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(busy.group, moved)]).values()
    with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
        errors = [p.error for p in refused.result(TIMEOUT_S).topic_partitions if p.error is not None]
        raise KafkaException(errors[0])

    empty = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(TIMEOUT_S)
    assert "confluent" in {g.group_id for g in empty.valid}
    assert busy.group not in {g.group_id for g in empty.valid}
    classic = admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(TIMEOUT_S)
    assert {"confluent", busy.group} <= {g.group_id for g in classic.valid}
    described = admin.describe_consumer_groups([busy.group])[busy.group].result(TIMEOUT_S)
    assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, "range")
    assert [m.group_instance_id for m in described.members] == ["static"]

    deleted = admin.delete_consumer_groups(["confluent", busy.group, "nobody"])
    assert deleted["confluent"].result(TIMEOUT_S) is None
    for group, code in ((busy.group, "NON_EMPTY_GROUP"), ("nobody", "GROUP_ID_NOT_FOUND")):
        with pytest.raises(KafkaException, match=code):
            deleted[group].result(TIMEOUT_S)
    assert offsets("confluent") == {}


@pytest.mark.process
def test_kafka_pythons_admin_works_on_groups(group_bootstrap, line, busy):
    from kafka import KafkaAdminClient

    assert commit(line, "python", {T0: 5, T1: 6}) is ErrorCode.NONE
    admin = KafkaAdminClient(bootstrap_servers=group_bootstrap)
    try:
        assert {"python", busy.group} <= {g["group_id"] for g in admin.list_groups()}
        (described,) = admin.describe_groups([busy.group]).values()
        assert described["group_state"] == "Stable"
        found = admin.list_group_offsets("python")["python"]
        assert {(p.topic, p.partition): o.offset for p, o in found.items()} == {T0: 5, T1: 6}
        results = admin.delete_groups(["python", busy.group])
        assert {group: str(error) for group, error in results.items()} == {
            "python": "OK",
            busy.group: results[busy.group],
        }
        assert "NonEmptyGroup" in str(results[busy.group])
    finally:
        admin.close()
    assert fetch(line, "python") == {}


def command(bootstrap, *arguments):
    """What the tool printed, in both streams."""
    done = java_tool(CONSUMER_GROUP_COMMAND, "--bootstrap-server", bootstrap, *arguments)
    return done.stdout + done.stderr


@pytest.mark.conformance
def test_javas_tool_lists_describes_moves_and_deletes(group_bootstrap, line, busy):
    assert commit(line, "java", {T0: 0, T1: 0, U0: 0}) is ErrorCode.NONE
    assert {"java", busy.group} <= set(command(group_bootstrap, "--list").split())
    rows = [row.split() for row in command(group_bootstrap, "--list", "--state").splitlines()]
    assert ["java", "Empty"] in rows
    assert [busy.group, "Stable"] in rows
    assert busy.group not in command(group_bootstrap, "--list", "--state", "Empty")
    assert ["java", "Classic"] in [row.split() for row in command(group_bootstrap, "--list", "--type").splitlines()]

    described = [row.split() for row in command(group_bootstrap, "--describe", "--group", "java").splitlines()]
    assert ["java", "t", "0", "0", "0", "0", "-", "-", "-"] in described
    state = command(group_bootstrap, "--describe", "--group", busy.group, "--state")
    assert "Stable" in state
    assert "range" in state
    members = command(group_bootstrap, "--describe", "--group", busy.group, "--members", "--verbose")
    assert busy.id in members
    assert "Group nobody not found" in command(group_bootstrap, "--describe", "--group", "nobody")

    reset = ("--reset-offsets", "--group", "java", "--topic", "t:0")
    assert "t" in command(group_bootstrap, *reset, "--to-offset", "0", "--dry-run")
    command(group_bootstrap, *reset, "--to-latest", "--execute")
    assert fetch(line, "java", [T0]) == {T0: 0}
    busy_reset = command(
        group_bootstrap, "--reset-offsets", "--group", busy.group, "--topic", "t", "--to-earliest", "--execute"
    )
    assert "inactive" in busy_reset

    gone = command(group_bootstrap, "--delete-offsets", "--group", "java", "--topic", "u")
    assert "Successful" in gone
    assert fetch(line, "java") == {T0: 0, T1: 0}
    subscribed = command(group_bootstrap, "--delete-offsets", "--group", busy.group, "--topic", "t")
    assert "subscribed" in subscribed

    assert "was successful" in command(group_bootstrap, "--delete", "--group", "java")
    assert describe(line, "java").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "not empty" in command(group_bootstrap, "--delete", "--group", busy.group)


@pytest.mark.process
def test_what_was_said_to_be_gone_does_not_come_back_after_a_kill(start_broker):
    broker = start_broker(topics={"t": 2, "u": 1}, settings={"offsets.topic.num.partitions": 1})
    wait_for_coordinator(broker.bootstrap)
    with Line(broker.bootstrap) as line:
        for number in range(20):
            assert commit(line, f"group-{number}", {T0: number, T1: 1}) is ErrorCode.NONE
        last = Member(broker.bootstrap, "left", "static", session_ms=300_000)
        stable(last)
        back = Member(broker.bootstrap, "static", "static", session_ms=300_000)
        stable(back)
        successor = Member(broker.bootstrap, "static", "static", session_ms=300_000)
        assert successor.join() is ErrorCode.NONE
        results = line.ask(DeleteGroupsRequest(groups_names=[f"group-{n}" for n in range(0, 20, 2)]), 2).results
        assert {result.error_code for result in results} == {0}
        assert last.leave() is ErrorCode.NONE
        broker.kill()
    broker.restart()
    wait_for_coordinator(broker.bootstrap)
    with Line(broker.bootstrap) as line:
        for number in range(20):
            wanted = {} if number % 2 == 0 else {T0: number, T1: 1}
            assert fetch(line, f"group-{number}") == wanted
        assert describe(line, "left").group_state == "Empty"
        about = describe(line, "static")
        assert [m.member_id for m in about.members] == [successor.id]
    for member in (last, back, successor):
        member.close()
