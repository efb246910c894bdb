"""What a take-over moves, and where to."""

from millstream.cli.take_over_plan import Place, beyond_reach, going, new_replicas, waiting


def test_what_others_have_a_majority_of_stays():
    alone, three, two = Place("a", 0, (2,)), Place("b", 0, (1, 2, 3)), Place("c", 0, (2, 3))
    assert waiting([two, three, alone], 2, {1, 3}) == [alone, two]
    assert waiting([three], 2, {1}) == [three]
    assert waiting([Place("d", 0, (1, 3))], 2, {1}) == []


def test_what_needs_another_dead_broker_too_is_told():
    both = Place("c", 0, (2, 4))
    assert beyond_reach([both, Place("a", 0, (2,))], 2, {1, 3}) == [both]


def test_the_live_broker_with_the_fewest_replicas_takes_each_partition():
    live = {1: 5, 3: 4}
    assert [new_replicas(Place("a", index, (2,)), 2, live) for index in range(4)] == [[3], [1], [3], [1]]
    assert new_replicas(Place("b", 0, (2, 1)), 2, live) == [3, 1]
    assert new_replicas(Place("b", 0, (1, 2, 3)), 2, live) == [1, 3]


def test_dead_brokers_that_prevent_a_majority_leave_where_nobody_else_can_take_their_place():
    assert new_replicas(Place("b", 0, (1, 2, 3)), 2, {1: 0}) == [1]
    assert new_replicas(Place("b", 0, (1, 2, 3)), 2, {1: 0, 4: 0}) == [1, 4, 3]


def test_a_move_away_from_the_disk_is_waited_for_and_goes_on_unless_it_leads_to_dead_brokers():
    away, to, done = (
        Place("a", 0, (2, 1, 3), 1, (3, 1)),
        Place("a", 1, (1, 2), 1, (1, 2)),
        Place("a", 2, (3, 1), 3),
    )
    assert waiting([away], 2, {1, 3, 4}) == [], "not to be told by the replicas"
    assert going([away, to, done], 2) == [away]
    assert new_replicas(away, 2, {1: 0, 3: 0, 4: 0}) == [3, 1]
    assert new_replicas(away, 2, {1: 0, 4: 0}) == [4, 1]
    assert new_replicas(Place("a", 1, (1, 2), 1, (1, 2)), 2, {1: 0, 3: 0}) == [1, 3]
