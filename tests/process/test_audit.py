"""The audit of a real broker: logins, refusals and changes with who and from where; no secret anywhere.

The secrets of a user are sought in everything that the broker writes or says.
"""

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from millstream.testing.process import Broker
from millstream.wire.messages.alter_client_quotas import AlterClientQuotasRequest, AlterEntryData, OpData
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from millstream.wire.messages.create_acls import AclCreation, CreateAclsRequest
from millstream.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.describe_client_quotas import EntityData
from millstream.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest
from millstream.wire.sasl import SCRAM_SHA_256, salted_password, verifier_of
from raw_line import Line, log_in
from waits import until

pytestmark = pytest.mark.process

PASSWORD = "a-word-of-alice-7731"
WRONG = "a-wrong-word-8842"
SALT = b"salt-of-alice-99"


@pytest.fixture(scope="module")
def broker():
    settings = {
        "listener.security.protocol.map": "A:PLAINTEXT,S:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
        "connection.failed.authentication.delay.ms": "10",
    }
    with Broker(None, settings, listen="A://127.0.0.1:0,S://127.0.0.1:0", shards=2) as started:
        yield started


def address(broker):
    return json.loads((broker.data_dir / "broker.json").read_text())["listeners"]["S"]


def log_in_plain(line, user, password):
    assert line.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
    return line.ask(SaslAuthenticateRequest(f"\0{user}\0{password}".encode()), 2)


def records(broker):
    path = broker.data_dir / "audit" / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def play(broker):
    """What alice and the broker's own user do."""
    salted = salted_password(SCRAM_SHA_256, PASSWORD, SALT, 4096)
    with Line(f"{broker.data_dir}/admin.sock") as admin:
        admin.ask(AlterUserScramCredentialsRequest([], [ScramCredentialUpsertion("alice", 1, 4096, SALT, salted)]))
        config = CreatableTopicConfig("retention.ms", "12345678")
        admin.ask(CreateTopicsRequest([CreatableTopic("orders", 1, 1, configs=[config])], 60_000))
        admin.ask(CreateTopicsRequest([CreatableTopic("orders", 1, 1)], 60_000))
        admin.ask(CreateAclsRequest([AclCreation(2, "orders", 3, "User:alice", "*", 3, 3)]))
        entry = AlterEntryData([EntityData("user", "alice")], [OpData("producer_byte_rate", 1e9, False)])
        admin.ask(AlterClientQuotasRequest([entry]))
        change = AlterableConfig("retention.ms", 0, "87654321")
        admin.ask(IncrementalAlterConfigsRequest([AlterConfigsResource(2, "orders", [change])]))
    with Line(address(broker)) as alice:
        assert log_in(alice, "alice", PASSWORD).error_code == 0
        assert alice.ask(DeleteTopicsRequest([DeleteTopicState("orders")])).responses[0].error_code == 29
        alice.ask(DescribeUserScramCredentialsRequest(None))
    with Line(address(broker)) as alice:
        assert log_in_plain(alice, "alice", PASSWORD).error_code == 0
    for password in (WRONG, PASSWORD[:-1]):
        with Line(address(broker)) as alice:
            assert log_in_plain(alice, "alice", password).error_code == 58
        with Line(address(broker)) as alice:
            assert log_in(alice, "alice", password).error_code == 58
    login = {"Authorization": "Basic " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode()}
    for more, status in (({}, 401), (login, 403)):
        headers = {"Content-Type": "application/json", **more}
        request = urllib.request.Request(f"{broker.http}/v1/cluster", b"{}", headers, method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code == status


def pages(broker):
    """Everything that the broker says over HTTP and of its configuration."""
    said = []
    for path in ("/", "/metrics", "/v1/status", "/v1/overview", "/v1/config", "/v1/cluster", "/v1/topics", "/healthz"):
        try:
            with urllib.request.urlopen(broker.http + path, timeout=60) as answer:
                said.append(answer.read())
        except urllib.error.HTTPError as error:
            said.append(error.read())
    with Line(f"{broker.data_dir}/admin.sock") as admin:
        resources = [DescribeConfigsResource(4, "", None), DescribeConfigsResource(2, "orders", None)]
        for request in (DescribeConfigsRequest(resources, True, True), DescribeUserScramCredentialsRequest(None)):
            said.append(repr(admin.ask(request)).encode())  # noqa: PERF401 - one after the other
    return said


def processes(broker):
    """Command lines of the broker's processes."""
    own = json.loads((broker.data_dir / "broker.json").read_text())["pid"]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if own in (int(process.name), parent):
                found.append((process / "cmdline").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_who_did_what_is_in_the_audit_and_no_secret_is_anywhere(broker):
    play(broker)
    salted = salted_password(SCRAM_SHA_256, PASSWORD, SALT, 4096)
    verifier = verifier_of(SCRAM_SHA_256, salted, SALT, 4096)
    said = [*pages(broker), *processes(broker)]
    assert len(said) > 13
    pid_file = broker.data_dir / "broker.json"
    said.append(pid_file.read_bytes())
    broker.stop()
    written = records(broker)
    said += [(broker.data_dir / "audit" / "audit.jsonl").read_bytes(), broker.log_path.read_bytes()]
    for secret in (PASSWORD.encode(), WRONG.encode(), PASSWORD[:-1].encode(), salted, *verifier_keys(verifier)):
        for form in (secret, secret.hex().encode(), repr(secret)[2:-1].encode()):
            assert not [text for text in said if form in text], form
    logins = [(one["principal"], one["outcome"]) for one in written if one["kind"] == "login"]
    assert logins.count(("User:alice", "succeeded")) == 2
    assert logins.count(("", "failed")) == 4
    assert {one["listener"] for one in written if one["kind"] == "login" and one["host"] == "127.0.0.1"} == {"S"}
    changes = {(one["api"], one["principal"]): one for one in written if one["kind"] == "change"}
    admin = "SocketFile:admin"
    assert changes["AlterUserScramCredentials", admin]["what"] == ["alice"]
    assert changes["CreateTopics", admin]["errors"] == ["TOPIC_ALREADY_EXISTS"]
    assert [one["errors"] for one in written if one.get("api") == "CreateTopics"] == [[], ["TOPIC_ALREADY_EXISTS"]]
    assert changes["CreateAcls", admin]["what"] == ["allow User:alice read on topic orders (literal) from *"]
    assert changes["AlterClientQuotas", admin]["what"] == ["user alice: producer_byte_rate=1e+09"]
    assert changes["IncrementalAlterConfigs", admin]["what"] == ["orders: retention.ms"]
    for who, status in (("", 401), ("User:alice", 403)):
        assert (changes["HTTP", who]["what"], changes["HTTP", who]["status"]) == (["POST /v1/cluster"], status)
    assert changes["HTTP", ""]["status"] >= 400
    refused = {(one["principal"], one["api"], one["error"], one["name"]) for one in written if one["kind"] == "refused"}
    assert ("User:alice", "DeleteTopics", "TOPIC_AUTHORIZATION_FAILED", "orders") in refused
    assert any(api == "DescribeUserScramCredentials" for _, api, _, _ in refused)
    assert not any("12345678" in json.dumps(one) or "87654321" in json.dumps(one) for one in written)
    broker.start()
    until(lambda: broker.http, "it is back")


def verifier_keys(verifier):
    return (verifier.stored_key, verifier.server_key)
