"""The broker as a child: when its end is over."""

import fcntl
import subprocess
import threading

import pytest

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
