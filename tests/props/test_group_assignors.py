"""Server-side assignors over random groups: complete, disjoint, within subscriptions, balanced, and sticky."""

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.group.assign.ranges import assign_ranges
from millstream.core.group.assign.spec import Subscriber, are_alike
from millstream.core.group.assign.uniform import assign_uniform

TOPICS = [bytes([index]) * 16 for index in range(5)]


@st.composite
def groups(draw, alike=None):
    """Members with subscriptions, and topics with sizes; nobody has anything yet."""
    sizes = {topic: draw(st.integers(1, 12)) for topic in TOPICS}
    alike = draw(st.booleans()) if alike is None else alike
    common = draw(st.frozensets(st.sampled_from(TOPICS)))
    members = {}
    for index in range(draw(st.integers(1, 9))):
        topics = common if alike else draw(st.frozensets(st.sampled_from(TOPICS)))
        instance = draw(st.none() | st.just(f"i{index}"))
        members[f"m{draw(st.integers(0, 99))}-{index}"] = Subscriber(topics, instance_id=instance)
    return members, sizes


def with_targets(members, assignment):
    return {
        name: Subscriber(member.topic_ids, assignment.get(name, {}), member.instance_id)
        for name, member in members.items()
    }


def check_valid(members, sizes, assignment):
    assert set(assignment) == set(members)
    owners = {}
    for name, topics in assignment.items():
        for topic, partitions in topics.items():
            assert topic in members[name].topic_ids, "nobody gets what it does not subscribe to"
            assert partitions, "no empty topics"
            for partition in partitions:
                assert 0 <= partition < sizes[topic]
                assert owners.setdefault((topic, partition), name) == name, "one owner"
    wanted = {topic for member in members.values() for topic in member.topic_ids}
    assert set(owners) == {(topic, partition) for topic in wanted for partition in range(sizes[topic])}, "complete"


def load(assignment, name):
    return sum(map(len, assignment[name].values()))


def check_balanced(members, sizes, assignment):
    """No partition could go from a member to one that subscribes to its topic and has at least two fewer."""
    for giver, topics in assignment.items():
        for topic in topics:
            for taker, member in members.items():
                if topic in member.topic_ids:
                    assert load(assignment, giver) - load(assignment, taker) <= 1


def moved(before, after):
    """Partitions that changed hands between members that are in both."""
    owner = {(t, p): name for name, topics in before.items() for t, partitions in topics.items() for p in partitions}
    return sum(
        owner.get((t, p)) not in (None, name)
        for name, topics in after.items()
        for t, partitions in topics.items()
        for p in partitions
    )


@settings(max_examples=100)
@given(groups())
def test_uniform_is_complete_disjoint_and_balanced(case):
    members, sizes = case
    assignment = assign_uniform(members, sizes)
    check_valid(members, sizes, assignment)
    check_balanced(members, sizes, assignment)


@settings(max_examples=100)
@given(groups())
def test_uniform_moves_nothing_when_nothing_changed(case):
    members, sizes = case
    assignment = assign_uniform(members, sizes)
    again = assign_uniform(with_targets(members, assignment), sizes)
    assert moved(assignment, again) == 0


@settings(max_examples=100)
@given(groups(alike=True), st.data())
def test_uniform_moves_no_more_than_balance_asks_for_when_a_member_comes_or_goes(case, data):
    members, sizes = case
    before = assign_uniform(members, sizes)
    topics = next(iter(members.values())).topic_ids
    total = sum(sizes[topic] for topic in topics)
    joined = {**with_targets(members, before), "new": Subscriber(topics)}
    after = assign_uniform(joined, sizes)
    check_valid(joined, sizes, after)
    check_balanced(joined, sizes, after)
    assert moved(before, after) == load(after, "new") <= -(-total // len(joined))
    gone = data.draw(st.sampled_from(sorted(joined)))
    left = {name: member for name, member in with_targets(joined, after).items() if name != gone}
    if left:
        last = assign_uniform(left, sizes)
        check_valid(left, sizes, last)
        check_balanced(left, sizes, last)
        kept = {name: topics for name, topics in after.items() if name != gone}
        assert moved(kept, last) == 0, "only what the leaver had changes hands"


@settings(max_examples=100)
@given(groups(), st.data())
def test_uniform_follows_changed_topics_and_subscriptions_from_any_former_assignment(case, data):
    members, sizes = case
    before = assign_uniform(members, sizes)
    sizes = {topic: data.draw(st.integers(1, 12)) for topic in TOPICS}
    members = {
        name: Subscriber(data.draw(st.frozensets(st.sampled_from(TOPICS))), before[name], member.instance_id)
        for name, member in members.items()
    }
    after = assign_uniform(members, sizes)
    check_valid(members, sizes, after)
    check_balanced(members, sizes, after)


@settings(max_examples=100)
@given(groups())
def test_range_gives_runs_of_equal_length_and_the_same_ones_of_topics_that_are_alike(case):
    members, sizes = case
    assignment = assign_ranges(members, sizes)
    check_valid(members, sizes, assignment)
    for name, topics in assignment.items():
        for topic, partitions in topics.items():
            low, high = min(partitions), max(partitions)
            assert partitions == frozenset(range(low, high + 1)), "a run"
            subscribers = sum(topic in member.topic_ids for member in members.values())
            assert len(partitions) - sizes[topic] // subscribers in (0, 1)
        if are_alike(members):
            for one in topics:
                for other in topics:
                    if sizes[one] == sizes[other]:
                        assert topics[one] == topics[other], f"{name} can join these"


def test_range_orders_members_by_instance_id_first():
    topic = TOPICS[0]
    members = {
        "a": Subscriber(frozenset({topic})),
        "z": Subscriber(frozenset({topic}), instance_id="2"),
        "y": Subscriber(frozenset({topic}), instance_id="1"),
    }
    assignment = assign_ranges(members, {topic: 4})
    assert {name: sorted(topics[topic]) for name, topics in assignment.items()} == {"y": [0, 1], "z": [2], "a": [3]}
