"""The broker as a child: when its end is over."""

import fcntl
import subprocess
import threading

import pytest

from millstream import testing
from millstream.testing import Broker


@pytest.fixture
def lock(tmp_path):
    """The lock of a data directory, held by somebody."""
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


@pytest.fixture
def broker(tmp_path):
    made = Broker(data_dir=tmp_path)
    made._process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield made
    made.kill()


def test_a_kill_is_over_when_the_last_process_has_let_go_of_the_data_directory(broker, lock):
    print(broker._process.pid, file=lock, flush=True)
    let_go = []

    def ends():
        let_go.append(True)
        fcntl.flock(lock, fcntl.LOCK_UN)

    threading.Timer(0.1, ends).start()
    broker.kill()
    assert let_go


def test_a_kill_does_not_wait_for_another_broker_on_the_directory(broker, lock):
    print(1, file=lock, flush=True)
    broker.kill()
    assert not broker.running


def test_the_package_shows_what_it_has():
    assert {"Broker", "BrokerFailed", "broker"} <= set(dir(testing))


def test_a_broker_says_what_it_is(broker):
    broker.bootstrap = "127.0.0.1:9092"
    assert repr(broker) == f"<Broker bootstrap='127.0.0.1:9092' pid=0 data_dir='{broker.data_dir}'>"
    broker.kill()
    assert repr(broker) == f"<Broker not running data_dir='{broker.data_dir}'>"


def test_groups_wait_for_nobody_unless_a_test_asks_for_it():
    assert "group.initial.rebalance.delay.ms=0" in Broker(data_dir="/nowhere").command()
    asked = Broker(data_dir="/nowhere", settings={"group.initial.rebalance.delay.ms": 500}).command()
    assert [word for word in asked if "rebalance" in word] == ["group.initial.rebalance.delay.ms=500"]
