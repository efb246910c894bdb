"""What tests of take-overs share: the command, a disk that is attached elsewhere, and who is fenced."""

import json
import shutil
import subprocess
import sys

from growing_support import status as cluster_status


def command(live, data, node=2):
    words = ["cluster", "take-over", str(node), "--data", str(data), "--json", "--bootstrap", live.bootstrap]
    return [sys.executable, "-m", "millstream.cli", *words, "--set", "shards=1", "--set", "memory.bytes=128MiB"]


def take_over(live, data, node=2, code=0):
    """What the command prints, read as JSON, or what it says when it refuses."""
    done = subprocess.run(command(live, data, node), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def fenced(live, node=2):
    return any(one["id"] == node and not one["alive"] for one in cluster_status(live)["brokers"])


def attach(made, tmp_path, node=2):
    """The disk of a broker that is dead, elsewhere."""
    moved = tmp_path / "attached"
    shutil.move(made.brokers[node].data_dir, moved)
    return moved
