"""A read that the store answers late is asked for again; a store that is slow as a whole is not asked twice."""

import threading

import pytest
from store_suite import StoreSuite

from millstream.errors import Unavailable
from millstream.objects.hedging import LATE_S, THREADS, Hedging
from millstream.objects.local import LocalStore
from waits import until

PATIENCE_S = 60


class Slow:
    """A store whose answers wait for an event, for those keys that have one."""

    url = "memory://"

    def __init__(self):
        self.asked = []
        self.gates = {}
        self.errors = {}

    def get(self, key, start, end):
        self.asked.append(key)
        number = self.asked.count(key)
        if (key, number) in self.gates:
            assert self.gates[key, number].wait(PATIENCE_S)
        if (key, number) in self.errors:
            raise self.errors[key, number]
        return memoryview(f"{key} {number}".encode())

    def close(self):
        pass

    def hold(self, key, number):
        self.gates[key, number] = threading.Event()
        return self.gates[key, number]


@pytest.fixture
def slow():
    return Slow()


@pytest.fixture
def hedged():
    return []


@pytest.fixture
def store(slow, hedged):
    made = Hedging(slow, lambda: hedged.append(1))
    for _ in range(60):
        made.get("known", 0, 1)
    yield made
    for gate in slow.gates.values():
        gate.set()
    made.close()


def read(store, key="late"):
    return bytes(store.get(key, 0, 1)).decode()


class TestHedging(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path):
        made = Hedging(LocalStore(f"{tmp_path}/bucket"))
        yield made
        made.close()


def test_the_second_answer_counts_when_the_first_is_late(store, slow, hedged):
    first = slow.hold("late", 1)
    assert read(store) == "late 2"
    assert len(hedged) == 1
    first.set()


def test_the_first_answer_counts_when_it_comes_before_the_second(store, slow, hedged):
    first, second = slow.hold("late", 1), slow.hold("late", 2)
    threading.Timer(3 * LATE_S, first.set).start()
    assert read(store) == "late 1"
    assert len(hedged) == 1
    second.set()


def test_an_error_counts_only_if_both_fail(store, slow):
    first = slow.hold("late", 1)
    slow.errors["late", 2] = Unavailable("the second")
    threading.Timer(3 * LATE_S, first.set).start()
    assert read(store) == "late 1"
    first = slow.hold("worse", 1)
    slow.errors["worse", 1] = Unavailable("the first")
    slow.errors["worse", 2] = Unavailable("the second")
    for _ in range(30):
        store.get("known", 0, 1)  # so that another read may be asked for again
    threading.Timer(3 * LATE_S, first.set).start()
    with pytest.raises(Unavailable, match="the second"):
        read(store, "worse")


def test_a_quick_error_is_raised_without_a_second_request(store, slow, hedged):
    slow.errors["gone", 1] = Unavailable("not there")
    with pytest.raises(Unavailable, match="not there"):
        read(store, "gone")
    assert hedged == []


def test_only_a_twentieth_of_the_reads_is_asked_for_again(store, slow, hedged):
    for number in range(10):
        gate = slow.hold(f"late {number}", 1)
        threading.Timer(2 * LATE_S, gate.set).start()
        read(store, f"late {number}")
    assert len(hedged) <= 3, "60 reads before, and 10 late ones"
    assert hedged


def test_nothing_is_asked_twice_of_a_store_that_is_not_known_yet(slow, hedged):
    store = Hedging(slow, lambda: hedged.append(1))
    gate = slow.hold("late", 1)
    threading.Timer(3 * LATE_S, gate.set).start()
    assert read(store) == "late 1"
    assert hedged == []
    store.close()


def test_reads_go_on_when_every_thread_waits_for_a_late_answer(store, slow):
    gates = [slow.hold(f"late {number}", 1) for number in range(THREADS)]
    readers = [threading.Thread(target=read, args=(store, f"late {number}")) for number in range(THREADS)]
    for reader in readers:
        reader.start()
    until(lambda: len(slow.asked) >= 60 + THREADS, "the readers do not ask")
    assert read(store, "another") == "another 1"
    for gate in gates:
        gate.set()
    for reader in readers:
        reader.join(PATIENCE_S)
