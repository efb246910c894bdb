"""Brokers and commands that are forks of a stem (``millstream.testing.stem``) are as their own starts make them."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from millstream.testing import Broker, cluster
from millstream.testing import stem as stems
from millstream.testing.namespaces import may_make
from millstream.testing.stem import Stem, grow, run_command, stem_for
from waits import until

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
            until(lambda: len({len(os.listdir(each)) for each in leftover}) == 1, "one has descriptors of another")


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
        with pytest.raises(OSError, match="the process that forks millstream has ended with -9"):
            stem.start(["--version"], os.environ, log.fileno())
    stem._line.close()


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["config", "show", "no.such.setting"],
        ["topic", "list"],
        ["schema", "list", "--json", "--registry", "http://127.0.0.1:1"],
        ["topic", "--help"],
        ["log", "verify", "--data", "nowhere"],
        ["start", "--data", "here", "--set", "audit.topic=no topic"],
    ],
    ids=" ".join,
)
def test_a_forked_command_says_what_its_start_of_its_own_would_say(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "MILLSTREAM_BOOTSTRAP": "127.0.0.1:1", "COLUMNS": "70"}
    command = [sys.executable, "-m", "millstream.cli", *words]
    own = subprocess.run(command, input="", capture_output=True, text=True, env=environment, timeout=300, check=False)
    forked = run_command(*words, env=environment)
    assert (forked.returncode, forked.stdout, forked.stderr) == (own.returncode, own.stdout, own.stderr)


def test_a_forked_command_reads_what_it_is_given_and_ends_with_its_time(broker):
    topic = broker.new_topic()
    where = ("--bootstrap", broker.bootstrap)
    assert run_command("produce", topic, *where, stdin="a\nb\n").returncode == 0
    assert run_command("consume", topic, "-e", *where).stdout == "a\nb\n"
    stem = stems.lasting_thread(os.getpid()).submit(stem_for, os.environ, "command").result()
    with pytest.raises(subprocess.TimeoutExpired):
        run_command("consume", topic, *where, timeout_s=0.5)
    assert not psutil.Process(stem._process.pid).children(), "it is killed and reaped"
