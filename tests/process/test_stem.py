"""Brokers that are forks of one process (``millstream.testing.stem``) are as their own starts would make them."""

import os
import resource
import signal
from pathlib import Path

import psutil
import pytest

from millstream.testing import Broker, cluster
from millstream.testing.namespaces import may_make
from millstream.testing.stem import Stem, grow, stem_for

pytestmark = pytest.mark.process

FILES = 1234


@pytest.fixture(autouse=True)
def grown():
    grow()


def is_fork(broker):
    return "millstream.testing.stem" in psutil.Process(broker.pid).parent().cmdline()


def test_a_fork_has_what_its_start_of_its_own_would_have(tmp_path, monkeypatch):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Broker(data_dir=tmp_path / "first", shards=1) as first:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MILLSTREAM_MESSAGE_MAX_BYTES", "54321")
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, limits[1]))
        try:
            second = Broker(data_dir="second", shards=1).start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        with second:
            assert is_fork(first)
            assert is_fork(second)
            one, other = psutil.Process(first.pid), psutil.Process(second.pid)
            assert one.cwd() != other.cwd() == str(tmp_path)
            assert [os.getsid(each.pid) for each in (one, other)] == [one.pid, other.pid]
            assert "from the environment" not in first.log_tail()
            assert "from the environment: message.max.bytes" in second.log_tail()
            assert f"Max open files            {FILES} " in Path(f"/proc/{second.pid}/limits").read_text()
            leftover = {f"/proc/{one.pid}/fd", f"/proc/{other.pid}/fd"}
            assert len({len(os.listdir(each)) for each in leftover}) == 1, "one has descriptors of another"


@pytest.mark.skipif(not may_make(), reason="needs root and iproute2")
def test_a_fork_is_in_the_network_of_its_broker():
    with cluster(2, networks=True) as brokers:
        assert all(map(is_fork, brokers.brokers.values()))
        places = {
            os.readlink(f"/proc/{pid}/ns/net") for pid in ("self", *(one.pid for one in brokers.brokers.values()))
        }
        assert len(places) == 3


def test_its_end_is_seen_like_that_of_any_process(tmp_path):
    with Broker(data_dir=tmp_path / "data", shards=1) as broker:
        assert is_fork(broker)
        assert broker.stop() == 0
        broker.start()
        process = broker._process
        os.kill(broker.pid, signal.SIGKILL)
        assert broker.wait(60) == process.poll() == process.wait() == -signal.SIGKILL
        process.send_signal(signal.SIGTERM)  # it may be another's pid by now
        broker.restart()
        assert is_fork(broker)


def test_what_a_program_reads_when_it_starts_is_started_with_an_exec(tmp_path):
    assert stem_for(os.environ) is not None
    for more in ({"PYTHONHASHSEED": "1"}, {"LD_BIND_NOW": "1"}):
        assert stem_for({**os.environ, **more}) is None
    with Broker(data_dir=tmp_path / "data", shards=1, env={"PYTHONHASHSEED": "1"}) as broker:
        assert not is_fork(broker)
    with Broker(data_dir=tmp_path / "data", shards=1, prefix=["env"]) as broker:
        assert not is_fork(broker)


def test_a_stem_that_is_gone_is_named(tmp_path):
    stem = Stem()
    with (tmp_path / "log").open("wb") as log:
        forked = stem.start(["--version"], os.environ, log.fileno())
        assert forked.stdout.read().startswith("millstream ")
        assert forked.wait() == 0
        forked.stdout.close()
        stem._process.kill()
        with pytest.raises(OSError, match="the process that forks brokers has ended with -9"):
            stem.start(["--version"], os.environ, log.fileno())
    stem._line.close()
