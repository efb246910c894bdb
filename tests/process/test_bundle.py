"""``millstream bundle`` has what a helper wants of a real broker, and neither records nor secrets."""

import json
import os
import signal
import ssl
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request

import pytest
from confluent_kafka import Producer

import certificates
from millstream.cli.__main__ import main
from millstream.testing.process import Broker
from waits import until

pytestmark = pytest.mark.process

SECRETS = {
    "keystore": "keystore-word-1881",
    "user": "user-word-2772",
    "record": "record-content-3663",
    "key": "record-key-4554",
    "log": "log-word-5445",
    "url": "url-word-6336",
    "file": "file-word-7227",
}


def members(path):
    with tarfile.open(path) as archive:
        return {one.name.partition("/")[2]: archive.extractfile(one).read() for one in archive.getmembers()}


def test_no_secret_and_no_record_is_in_a_bundle(tmp_path, capfd):
    certificates.write(tmp_path, "broker", hosts=certificates.HOSTS)
    settings = {
        "listener.security.protocol.map": "PLAIN:PLAINTEXT",
        "http.security.protocol": "SSL",
        "ssl.keystore.location": tmp_path / "broker.pem",
        "ssl.truststore.location": tmp_path / "ca.pem",
        "ssl.key.password": SECRETS["keystore"],
    }
    key = (tmp_path / "broker.pem").read_text().split("PRIVATE KEY-----")[1]
    private = [line for line in key.splitlines() if len(line) > 20]
    assert private
    with Broker(["orders"], settings, listen="PLAIN://127.0.0.1:0", shards=1) as broker:
        (tmp_path / "word").write_text(SECRETS["user"])
        at = ["--data", str(broker.data_dir)]
        assert main(["user", "create", "alice", "--password-file", str(tmp_path / "word"), *at]) == 0
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", SECRETS["record"], key=SECRETS["key"])
        assert producer.flush(60) == 0
        (broker.data_dir / "machine.json").write_text(json.dumps({"disk": 3, "access_key": SECRETS["file"]}))
        log = tmp_path / "broker.log"
        log.write_text(
            f"start --ssl.key.password {SECRETS['log']}\nurl=https://me:{SECRETS['url']}@host/x\n"
            f'{{"client_secret": "{SECRETS["log"]}"}}\nsasl.jaas.config=X password="{SECRETS["log"]}";\n'
            f"{(tmp_path / 'broker.pem').read_text()}\nall is well\n"
        )
        out = tmp_path / "b.tar.gz"
        command = ["bundle", "-o", str(out), "--minutes", "0", "--log", str(log), "--log", str(broker.log_path)]
        trust = ["-X", f"ssl.ca.location={tmp_path / 'ca.pem'}"]
        command += [*at, *trust, "--bootstrap", broker.bootstrap, "--json"]
        capfd.readouterr()
        assert main(command) == 0
        told = json.loads(capfd.readouterr().out)
        assert main(command) == 2  # it exists
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        over_http = tmp_path / "http.tar.gz"
        over_http.write_bytes(downloaded(broker, context))
    assert told["missing"].keys() <= {"state/tiers.json"}
    found = members(out)
    assert os.stat(out).st_mode & 0o777 == 0o600
    assert {
        "bundle.json",
        "settings.json",
        "state/status.json",
        "state/recovery.json",
        "metrics/000.txt",
    } <= found.keys()
    assert {"tune.json", "machine.json", "host.json", "logs/0-broker.log"} <= found.keys()
    assert b"all is well" in found["logs/0-broker.log"]
    assert json.loads(found["settings.json"])["num.partitions"]["value"]
    assert json.loads(found["machine.json"])["disk"] == 3
    gathered = members(over_http)
    assert {"state/status.json", "settings.json", "metrics/000.txt", "host.json", "tune.json"} <= gathered.keys()
    assert json.loads(gathered["machine.json"])["disk"] == 3
    assert json.loads(gathered["bundle.json"])["missing"].keys() <= {"state/tiers.json"}
    for content in (*found.values(), *gathered.values()):
        for secret in (*SECRETS.values(), *private):
            assert secret.encode() not in content
    assert not list(broker.data_dir.glob("*bundle*"))


def asked(broker, method, path, body=None, context=None):
    """Status and body of an answer over HTTP."""
    headers = {"Content-Type": "application/json"} if body is not None else {}
    request = urllib.request.Request(broker.http + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def downloaded(broker, context=None):
    """A bundle that the broker gathered itself."""
    assert json.loads(asked(broker, "GET", "/v1/bundle", None, context)[1])["state"] == "none"
    status, body = asked(broker, "POST", "/v1/bundle", b"{}", context)
    assert (status, json.loads(body)["state"]) == (202, "gathering")
    until(lambda: json.loads(asked(broker, "GET", "/v1/bundle", None, context)[1])["state"] == "ready", "the bundle")
    ready = json.loads(asked(broker, "GET", "/v1/bundle", None, context)[1])
    status, file = asked(broker, "GET", f"/v1/bundle/{ready['name']}", None, context)
    assert (status, len(file)) == (200, ready["bytes"])
    assert asked(broker, "GET", "/v1/bundle/another.tar.gz", None, context)[0] == 404
    return file


def test_a_bundle_over_http_is_gathered_one_at_a_time(broker_factory):
    with broker_factory(shards=1) as running:
        first = json.loads(asked(running, "POST", "/v1/bundle", b'{"minutes": 60}')[1])
        again = json.loads(asked(running, "POST", "/v1/bundle", b"{}")[1])
        assert (first["state"], again["name"]) == ("gathering", first["name"])
        assert asked(running, "GET", f"/v1/bundle/{first['name']}")[0] == 404
        for body in (b'{"minutes": 61}', b'{"minutes": -1}', b'{"hours": 1}', b""):
            assert asked(running, "POST", "/v1/bundle", body)[0] == 400
        assert running.stop() == 0, "an hour of sampling holds no broker back"


def test_a_broker_that_is_down_leaves_a_bundle_of_its_machine(tmp_path, capfd):
    out = tmp_path / "b.tar.gz"
    assert main(["bundle", "-o", str(out), "--bootstrap", "127.0.0.1:1", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert {"settings.json", "state/status.json", "metrics/000.txt"} <= told["missing"].keys()
    assert {"bundle.json", "host.json"} <= members(out).keys()


def test_a_place_that_takes_no_file_is_said_before_the_work(tmp_path, capfd):
    assert main(["bundle", "-o", str(tmp_path / "absent" / "b.tar.gz"), "--bootstrap", "127.0.0.1:1"]) == 1
    said = capfd.readouterr().err
    assert "no such file or directory" in said and "sampling" not in said


def test_an_interrupt_keeps_what_is_there(broker, tmp_path):
    out = tmp_path / "b.tar.gz"
    command = [sys.executable, "-m", "millstream.cli", "bundle", "-o", str(out), "--bootstrap", broker.bootstrap]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        assert "sampling metrics for 10 minutes" in run.stderr.readline()
        run.send_signal(signal.SIGINT)
        rest = run.stderr.read()
    assert (run.returncode, "ended early" in rest) == (0, True), rest
    assert {"settings.json", "state/cluster.json"} <= members(out).keys()
    assert not list(tmp_path.glob("*.part"))
