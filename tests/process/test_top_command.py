"""``millstream top`` beside a real broker."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios

import pytest

from millstream.testing.stem import run_command
from waits import Patience

pytestmark = pytest.mark.process


class pty_of:  # noqa: N801 - reads as a function
    """A command on a terminal of 80 by 24."""

    def __init__(self, command):
        self.command = command

    def __enter__(self):
        self.terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen(self.command, stdin=end, stdout=end, stderr=end, env=env)
        os.close(end)
        self.ready = select.poll()  # unlike select it takes descriptors beyond 1023, which a long session has
        self.ready.register(self.terminal, select.POLLIN)
        return self

    def shows(self, text):
        """Read on until it shows a text."""
        seen, patience = "", Patience()
        while text not in seen:
            patience.check(seen)
            if self.ready.poll(200):
                seen += os.read(self.terminal, 65536).decode(errors="replace")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        os.close(self.terminal)


def top(broker, *words):
    done = run_command("top", "--bootstrap", broker.bootstrap, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_top_shows_what_each_shard_does(broker):
    seen = json.loads(top(broker, "--count", 1, "--interval", 0.2, "--json"))
    assert [shard["shard"] for shard in seen["shards"]] == list(range(len(seen["shards"])))
    assert all(shard["memory_limit_bytes"] > 0 for shard in seen["shards"])
    lines = top(broker, "-n", 2, "-i", 0.2).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("SHARD   CPU") for line in lines) == 2


def test_a_broker_that_comes_back_elsewhere_is_found_again(broker_factory):
    broker = broker_factory(shards=1)
    command = [sys.executable, "-m", "millstream.cli", "top", "--bootstrap", broker.bootstrap, "-i", "0.2"]
    with pty_of(command) as screen:
        screen.shows("SYNC P99")
        broker.kill()
        screen.shows("no metrics from")
        broker.start()
        screen.shows("SYNC P99")


def test_a_url_that_is_none_is_refused():
    done = run_command("top", "--once", "--metrics", "localhost:80")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: --metrics localhost:80: not a URL")


def test_a_place_without_metrics_is_named(broker):
    done = run_command("top", "-n", "1", "--metrics", f"http://{broker.bootstrap}/")
    assert done.returncode == 1
    assert "no metrics from" in done.stderr
