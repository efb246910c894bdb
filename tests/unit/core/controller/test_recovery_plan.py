"""What an unsafe recovery comes to, and when it is refused in words."""

import msgspec
import pytest

from millstream.core.controller.recovery_plan import GroupFacts, KnownBroker, Survivor, plan_recovery
from millstream.errors import Rejected


def group(number, voters, *, term=3, end=10, topic="t", **more):
    facts = GroupFacts(
        number, topic if number else "", number, voters, voters, (), term, False, -1, term, end, end, end, False
    )
    return msgspec.structs.replace(facts, **more)


def survivor(node, *groups, brokers=(1, 2, 3), connected=(), cluster="c", lost=()):
    known = tuple(KnownBroker(each, each == node, each in lost) for each in brokers)
    return Survivor(cluster, node, None, known, connected, groups)


def test_the_only_survivor_goes_on_with_everything_and_may_lose_what_was_acknowledged():
    plan = plan_recovery([survivor(1, group(0, (1, 2, 3)), group(7, (1, 2, 3), end=42))], [2, 3])
    assert plan.controller is not None and plan.controller.survivor == 1
    assert plan.undeclared == (2, 3)
    (part,) = plan.partitions
    assert (part.group, part.survivor, part.end_offset, part.may_lose_acknowledged) == (7, 1, 42, True)


def test_the_newest_log_goes_on_by_term_before_length():
    brokers = (1, 2, 3, 4, 5)
    known = [
        survivor(1, group(7, brokers, term=3, end=90), brokers=brokers),
        survivor(2, group(7, brokers, term=4, end=40), brokers=brokers),
    ]
    (part,) = plan_recovery(known, [3, 4, 5]).partitions
    assert (part.survivor, part.end_offset) == (2, 40)
    known[1] = survivor(2, group(7, brokers, term=4, end=40, damaged=True), brokers=brokers)
    (part,) = plan_recovery(known, [3, 4, 5]).partitions
    assert part.survivor == 1, "a replica that has lost a part of its log is not taken"


def test_two_lost_of_four_cannot_have_committed_alone():
    brokers = (1, 2, 3, 4)
    known = [survivor(node, group(7, brokers), brokers=brokers) for node in (1, 2)]
    (part,) = plan_recovery(known, [3, 4]).partitions
    assert not part.may_lose_acknowledged


def test_a_partition_whose_only_survivor_is_damaged_cannot_be_recovered():
    (part,) = plan_recovery([survivor(1, group(7, (1, 2, 3), damaged=True))], [2, 3]).partitions
    assert (part.survivor, part.end_offset) == (None, 0)


def test_what_was_recovered_before_is_left_alone_when_the_command_is_repeated():
    old = group(7, (1, 2, 3, 4, 5), term=4, end=40)
    alone = group(7, (1,), term=9, end=50, leads=True)
    brokers = (1, 2, 3, 4, 5)
    known = [survivor(1, alone, brokers=brokers, lost=(3, 4, 5)), survivor(2, old, brokers=brokers, lost=(3, 4, 5))]
    assert plan_recovery(known, [3, 4, 5]).partitions == ()


@pytest.mark.parametrize(
    ("known", "lost", "words"),
    [
        (
            [survivor(1, group(0, (1, 2, 3))), survivor(2, group(0, (1, 2, 3)))],
            [3],
            "a majority of every group is alive",
        ),
        ([survivor(1, group(0, (1, 2, 3)))], [2], "broker 3 is named neither as a survivor nor as lost"),
        ([survivor(1, connected=(3,))], [2, 3], "broker 1 is connected with broker 3, which is not lost"),
        ([survivor(1)], [1, 2, 3], "broker 1 answers, so it is not lost"),
        ([survivor(1)], [2, 3, 9], "no broker 9 is registered"),
        ([survivor(1), survivor(1)], [2, 3], "a survivor is named twice"),
        ([survivor(1), survivor(2, cluster="d")], [3], "different clusters: c, d"),
    ],
)
def test_a_recovery_is_refused_in_words(known, lost, words):
    with pytest.raises(Rejected) as refused:
        plan_recovery(known, lost)
    assert words in refused.value.message
