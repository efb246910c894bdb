"""A data directory may have any name that a file system takes: its path is never taken for a list of addresses."""

import json
import subprocess
import sys

import pytest

from millstream.testing.process import Broker

pytestmark = pytest.mark.process

ODD = "a, b:9092 %41 #é'\"$x"


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "millstream.cli", *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_broker_with_logins_alone_and_its_backup_in_a_directory_with_commas(tmp_path):
    data, store = tmp_path / ODD, tmp_path / "kept"
    secrets = tmp_path / "user, first"
    secrets.write_text("alice:a-word-of-alice\n")
    with Broker(
        data_dir=data,
        settings={"super.users": "User:alice", "sasl.enabled.mechanisms": "PLAIN"},
        env={"MILLSTREAM_BOOTSTRAP_USER_FILE": str(secrets)},
        listen="SASL_PLAINTEXT://127.0.0.1:0",
        shards=1,
    ) as broker:
        made = run("backup", "create", "--to", store.as_uri(), "--data", str(data))
        assert made.returncode == 0, made.stderr
        users = run("user", "list", "--data", str(data), "--json")
        assert "alice" in json.dumps(json.loads(users.stdout)), users.stderr
        broker.kill()
        broker.start()
        assert run("user", "list", "--data", str(data)).returncode == 0
