"""The lazy heap of deadlines against a plain list."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.core.group.deadlines import SESSION, Deadline, Deadlines
from millstream.core.group.group import Group

steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 4), st.integers(1, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(steps)
def test_every_deadline_comes_once_in_time_and_none_early(given_steps):
    heap, group, now = Deadlines(), Group("g", 0), 1
    deadlines = [Deadline(SESSION, group, str(i)) for i in range(5)]
    expected: dict[int, int] = {}
    for kind, which, amount in given_steps:
        if kind == "set":
            heap.set(deadlines[which], now + amount)
            expected[which] = now + amount
        elif kind == "cancel":
            heap.cancel(deadlines[which])
            expected.pop(which, None)
        else:
            now += amount
            came = set()
            while (deadline := heap.pop_due(now)) is not None:
                which = deadlines.index(deadline)
                assert which not in came
                came.add(which)
            assert came == {which for which, at in expected.items() if at <= now}
            expected = {which: at for which, at in expected.items() if at > now}
        assert not expected or heap.next_us <= min(expected.values())


def test_moving_a_deadline_later_does_not_grow_the_heap():
    heap, deadline = Deadlines(), Deadline(SESSION, Group("g", 0), "m")
    for at in range(1, 10_000):
        heap.set(deadline, at)
    assert len(heap._heap) == 1


def test_deadlines_that_are_given_up_do_not_stay_until_their_time():
    heap, group, lasting = Deadlines(), Group("g", 0), Deadline(SESSION, Group("g", 0), "m")
    heap.set(lasting, 2_000_000)
    moved = Deadline(SESSION, group, "moved")
    for at in range(1_000_000, 900_000, -1):
        heap.set(moved, at)
        left = Deadline(SESSION, group, "left")
        heap.set(left, at)
        heap.cancel(left)
    assert len(heap._heap) < 5_000
    assert heap.pop_due(900_001) is moved
    assert heap.pop_due(1_999_999) is None
    assert heap.pop_due(2_000_000) is lasting
