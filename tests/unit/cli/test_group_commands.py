"""``millstream group``: lag that adds up, and a reset that is shown before it is done."""

import json
from types import SimpleNamespace

import pytest
from cli_fakes import FakeGroup
from confluent_kafka import TopicPartition


def member(*topic_partitions):
    assignment = SimpleNamespace(topic_partitions=[TopicPartition(*place) for place in topic_partitions])
    return SimpleNamespace(member_id="m-1", client_id="c", host="/127.0.0.1", assignment=assignment)


@pytest.fixture
def group(cluster):
    cluster.fill("t", b"a", b"b", b"c")
    cluster.fill("u", b"x")
    cluster.groups["g"] = FakeGroup(committed={("t", 0): 1})
    return cluster.groups["g"]


def test_groups_are_listed_with_their_state(millstream, cluster, group):
    assert millstream("group", "list").out == "GROUP  STATE  TYPE\ng      empty  classic\n"
    assert json.loads(millstream("group", "list", "--json").out) == [
        {"group": "g", "state": "empty", "type": "classic"}
    ]


def test_describe_shows_lag_and_owners(millstream, group):
    group.state, group.members = "STABLE", [member(("t", 0), ("u", 0))]
    document = json.loads(millstream("group", "describe", "g", "--json").out)
    assert (document["state"], document["members"], document["lag"]) == ("stable", 1, 2)
    first, second = document["partitions"]
    assert (first["committed"], first["end_offset"], first["lag"], first["client"]) == (1, 3, 2, "c")
    assert (second["topic"], second["committed"], second["lag"]) == ("u", None, None)
    assert "lag          2\n" in millstream("group", "describe", "g").out


def test_a_damaged_partition_does_not_hide_the_others_of_its_group(millstream, cluster, group):
    group.committed["u", 0] = 1
    cluster.damaged.add("u")
    outcome = millstream("group", "describe", "g", "--json")
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    assert [(each["topic"], each["end_offset"], each["lag"]) for each in document["partitions"]] == [
        ("t", 3, 2),
        ("u", None, None),
    ]
    assert document["lag"] == 2
    assert millstream("group", "describe", "g").code == 0


def test_an_unknown_group_is_an_error(millstream, group):
    outcome = millstream("group", "describe", "nope")
    assert outcome.code == 1
    assert "there is no group 'nope'" in outcome.err


@pytest.mark.parametrize(
    ("to", "offset"),
    [("earliest", 0), ("latest", 3), ("2", 2), ("99", 3), ("2023-11-14T22:13:20+00:00", 0), ("2100-01-01", 3)],
)
def test_reset_is_shown_first_and_done_on_demand(millstream, group, to, offset):
    shown = millstream("group", "reset", "g", "--to", to, "--all-topics")
    assert shown.out == f"TOPIC  PARTITION  COMMITTED  NEW\nt              0          1    {offset}\n"
    assert "nothing was changed, --execute does it" in shown.err
    assert group.committed == {("t", 0): 1}
    done = millstream("group", "reset", "g", "--to", to, "--all-topics", "--execute", "--json")
    assert json.loads(done.out)["executed"] is True
    assert group.committed == {("t", 0): offset}


def test_reset_of_named_partitions_makes_offsets_where_there_were_none(millstream, group):
    assert millstream("group", "reset", "g", "--to", "end", "--topic", "u:0", "--execute").code == 0
    assert group.committed == {("t", 0): 1, ("u", 0): 1}


def test_an_active_group_is_not_reset(millstream, group):
    group.state, group.members = "STABLE", [member(("t", 0))]
    outcome = millstream("group", "reset", "g", "--to", "earliest", "--all-topics", "--execute")
    assert outcome.code == 1
    assert "group 'g' is active with 1 member" in outcome.err
    assert group.committed == {("t", 0): 1}
    assert millstream("group", "reset", "g", "--to", "earliest", "--all-topics").code == 0


@pytest.mark.parametrize(("topic", "code"), [("t:7", 2), ("t:x", 2), ("nope", 1)])
def test_reset_refuses_what_does_not_exist(millstream, group, topic, code):
    assert millstream("group", "reset", "g", "--to", "end", "--topic", topic).code == code


def test_reset_without_offsets_asks_for_a_topic(millstream, cluster):
    outcome = millstream("group", "reset", "new", "--to", "end", "--all-topics")
    assert outcome.code == 1
    assert "--topic" in outcome.err


def test_lists_are_filtered_by_state_and_type(millstream, cluster, group):
    cluster.groups["busy"] = FakeGroup("STABLE")
    cluster.groups["moving"] = FakeGroup("PREPARING_REBALANCING")

    def listed(*options):
        return [entry["group"] for entry in json.loads(millstream("group", "list", "--json", *options).out)]

    assert listed("--state", "stable") == ["busy"]
    assert listed("--state", "Empty", "--state", "preparing_rebalance") == ["g", "moving"]
    assert listed("--type", "classic", "--state", "stable") == ["busy"]
    assert listed("--type", "consumer") == []
    assert "there are no such consumer groups" in millstream("group", "list", "--type", "consumer").err


@pytest.mark.parametrize(("option", "expected"), [("--state", "completing-rebalance"), ("--type", "classic")])
def test_a_state_or_type_that_does_not_exist_is_refused(millstream, group, option, expected):
    outcome = millstream("group", "list", option, "nonsense")
    assert outcome.code == 2
    assert f"{option}: 'nonsense' is not valid" in outcome.err
    assert expected in outcome.err


def test_groups_are_deleted(millstream, cluster, group):
    cluster.groups["h"] = FakeGroup()
    assert millstream("group", "delete", "g", "h", "g").err == "deleted group 'g'\ndeleted group 'h'\n"
    assert cluster.groups == {}
    outcome = millstream("group", "delete", "g")
    assert outcome.code == 1
    assert "there is no group 'g'" in outcome.err
    shown = json.loads(millstream("group", "delete", "g", "--if-exists", "--json").out)
    assert shown == [{"group": "g", "deleted": False}]


def test_a_group_with_members_is_not_deleted(millstream, cluster, group):
    group.members = [member(("t", 0))]
    outcome = millstream("group", "delete", "g", "--if-exists")
    assert outcome.code == 1
    assert "group 'g' has active members; stop its consumers first" in outcome.err
    assert "g" in cluster.groups
