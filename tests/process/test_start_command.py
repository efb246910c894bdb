"""``millstream start``: ready when it says so, gone when it is told, refused by name when it cannot be."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from confluent_kafka.admin import AdminClient

from waits import PATIENCE_S

pytestmark = pytest.mark.process

START = [
    sys.executable,
    "-m",
    "millstream.cli",
    "start",
    "--listen",
    "127.0.0.1:0",
    "--shards",
    "1",
    "--memory",
    "128MiB",
]


@contextlib.contextmanager
def started(command):
    """A process with its pipes, gone at the end also when an assertion failed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_start_serves_from_its_ready_line_until_sigterm(tmp_path):
    command = [*START, "--data", str(tmp_path), "--set", "num.partitions=3", "--set", "shards.pin=false"]
    with started(command) as running:
        assert running.stdout is not None
        ready = running.stdout.readline()
        written = json.loads((tmp_path / "broker.json").read_text())
        assert written["bootstrap"] in ready
        assert os.path.exists(f"/proc/{written['pid']}")
        second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert second.returncode != 0
        assert str(tmp_path) in second.stderr
        listed = subprocess.run(
            [sys.executable, "-m", "millstream.cli", "topic", "list", "--json", "--bootstrap", written["bootstrap"]],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        assert json.loads(listed.stdout) == []
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 0


def test_every_process_of_the_broker_shows_its_cpu_time(broker):
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    shown = {line.partition("}")[0] for line in lines if line.startswith("millstream_process_cpu_seconds_total")}
    for role in ("shard", "writer", "worker", "cleaner"):
        assert f'millstream_process_cpu_seconds_total{{process="{role}-0"' in shown


def test_topics_of_a_shared_broker_have_names_of_their_own(broker):
    names = {broker.new_topic(2, prefix="orders", config={"retention.ms": 60_000}) for _ in range(2)}
    described = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).topics
    assert [len(described[name].partitions) for name in names] == [2, 2]
    assert all(name.startswith("orders-") for name in names)
    with pytest.raises(RuntimeError, match="INVALID_CONFIG"):
        broker.new_topic(config={"retention.ms": "soon"})


def test_stop_ends_the_broker_of_a_directory_and_waits_for_it(broker_factory):
    broker = broker_factory(shards=1)
    stop = [*START[:3], "stop", "--data", str(broker.data_dir)]
    done = subprocess.run(stop, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stderr == f"stopped the broker on {broker.data_dir} (process {broker.pid})\n"
    assert broker.wait(60) == 0
    again = subprocess.run(stop, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert again.stderr == f"no broker runs on {broker.data_dir}\n"


def test_one_line_says_that_it_serves_and_how_long_that_took(tmp_path):
    before_s = time.time()
    with subprocess.Popen(
        [*START, "--data", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        after_s = time.time()
        try:
            lines = iter(process.stdout.readline, b"")
            ready = next(line.decode() for line in lines if b" serves after " in line)
            seen_s = time.time()
            written_s = (tmp_path / "broker.json").stat().st_mtime  # just before that line
            process.terminate()
            assert not any(b"serves after" in line for line in lines), "stderr is the same place"
        finally:
            process.kill()
    told_s = float(ready.split(" serves after ")[1].split(" s:")[0])  # rounded to tenths
    assert written_s - after_s - 0.06 < told_s < seen_s - before_s + 0.06
