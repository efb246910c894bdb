"""``millstream top`` beside a real broker."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


def top(broker, *words):
    command = [sys.executable, "-m", "millstream.cli", "top", "--bootstrap", broker.bootstrap, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_top_shows_what_each_shard_does(broker):
    seen = json.loads(top(broker, "--count", 1, "--interval", 0.2, "--json"))
    assert [shard["shard"] for shard in seen["shards"]] == list(range(len(seen["shards"])))
    assert all(shard["memory_limit_bytes"] > 0 for shard in seen["shards"])
    lines = top(broker, "-n", 2, "-i", 0.2).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("SHARD   CPU") for line in lines) == 2


def test_a_place_without_metrics_is_named(broker):
    command = [sys.executable, "-m", "millstream.cli", "top", "-n", "1", "--metrics", f"http://{broker.bootstrap}/"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "no metrics from" in done.stderr
