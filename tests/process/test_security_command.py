"""``millstream security``: one command makes what brokers and clients need; it is renewed and added to."""

import os
import socket
import stat
import urllib.error
import urllib.request

import pytest

from millstream.client.security import context_of, read_security
from millstream.config.properties_file import read_properties_file
from millstream.testing.process import Broker
from millstream.testing.stem import run_command
from waits import until

pytestmark = pytest.mark.process


def millstream(*words, check=True):
    done = run_command(*words)
    assert not check or done.returncode == 0, done.stderr
    return done


def given(path):
    return {name: value for _, name, value in read_properties_file(str(path))}


def test_init_makes_a_broker_and_a_client_that_prove_themselves_to_each_other(tmp_path):
    keys = tmp_path / "keys"
    said = millstream("security", "init", keys)
    assert "millstream start --config" in said.stdout
    for path in keys.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    settings = {**given(keys / "localhost" / "broker.properties"), "insecure.listeners": "refuse"}
    listen = f"SSL://{'0.0.0.0'}:0"
    with Broker(settings=settings, listen=listen, shards=1, data_dir=tmp_path / "data") as broker:
        at = f"localhost:{broker.bootstrap.rpartition(':')[2]}"
        client = keys / "users" / "admin" / "client.properties"
        millstream("topic", "create", "orders", "--bootstrap", at, "--command-config", client)
        refused = millstream(
            "topic",
            "list",
            "--bootstrap",
            at,
            "-X",
            "security.protocol=SSL",
            "-X",
            f"ssl.ca.location={keys}/ca.pem",
            "--timeout",
            "3",
            check=False,
        )
        assert refused.returncode == 1
        before = (keys / "localhost" / "broker.pem").read_bytes()
        assert "localhost: until" in millstream("security", "renew", keys).stderr
        assert (keys / "localhost" / "broker.pem").read_bytes() != before
        until(lambda: "new TLS key material" in broker.log_path.read_text(), broker.log_tail)  # by the look alone
        millstream("security", "cert", "add", keys, "alice", "--client")
        alice = keys / "users" / "alice" / "client.properties"
        assert "orders" not in millstream("topic", "list", "--bootstrap", at, "--command-config", alice).stdout
        assert "orders" in millstream("topic", "list", "--bootstrap", at, "--command-config", client).stdout
        url = f"https://localhost:{broker.http.rpartition(':')[2]}"
        context = context_of(read_security({"security.protocol": "SSL", "ssl.ca.location": str(keys / "ca.pem")}))
        with urllib.request.urlopen(f"{url}/healthz", context=context, timeout=60) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"{url}/v1/status", context=context, timeout=60)
        assert refusal.value.code == 401
        refusal.value.close()
        whole = context_of(read_security(given(client)))
        with urllib.request.urlopen(f"{url}/v1/status", context=whole, timeout=60) as answer:
            assert answer.status == 200


def test_a_directory_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("x")
    done = millstream("security", "init", tmp_path, check=False)
    assert (done.returncode, "is not empty" in done.stderr) == (1, True)
    assert os.listdir(tmp_path) == ["mine"]
    assert millstream("security", "renew", tmp_path, check=False).returncode == 1


def test_a_start_beyond_this_machine_is_refused_before_anything_is_written(tmp_path):
    words = ("start", "--data", tmp_path / "data", "--listen", "0.0.0.0:0", "--http", "127.0.0.1:0")
    done = millstream(*words, check=False)
    assert done.returncode == 2
    for word in ("PLAINTEXT://0.0.0.0:0 is clear", "millstream security init", "insecure.listeners=allow"):
        assert word in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_start_that_allows_it_says_so(tmp_path):
    with Broker(listen="0.0.0.0:0", shards=1, data_dir=tmp_path / "data") as broker:
        assert "PLAINTEXT://0.0.0.0:0 is clear" in broker.log_path.read_text()
        url = f"http://127.0.0.1:{broker.http.rpartition(':')[2]}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert "millstream_insecure_listeners 2" in answer.read().decode()
        socket.create_connection(("127.0.0.1", int(broker.bootstrap.rpartition(":")[2])), 60).close()
