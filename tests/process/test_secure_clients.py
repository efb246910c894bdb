"""Clients of ours against a broker that takes TLS only: commands, profiles, events, the store's own client."""

import os
import pickle
import ssl
import stat
import urllib.request

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

import certificates
from millstream.client import Cluster
from millstream.client.security import read_security
from millstream.errors import Rejected
from millstream.events import EventsClient
from millstream.testing import broker
from millstream.testing.stem import run_command

pytestmark = pytest.mark.process

PASSWORD = "hush, nobody knows"


@pytest.fixture(scope="module")
def secure():
    with broker(topics={"orders": 1}, secure=True, shards=1) as running:
        yield running


@pytest.fixture
def command(tmp_path):
    """``command(words…)``: exit code, what it printed and what it said, with profiles of its own."""

    def run(*words, given=""):
        environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
        for name in ("MILLSTREAM_BOOTSTRAP", "MILLSTREAM_PROFILE"):
            environment.pop(name, None)
        done = run_command(*words, stdin=given, env=environment)
        return done.returncode, done.stdout, done.stderr

    return run


def test_commands_reach_it_by_a_profile_which_nobody_else_can_read(secure, command, tmp_path):
    properties = tmp_path / "client.properties"
    properties.write_text(f"security.protocol=SSL\nssl.truststore.location={secure.ca_path}\n")
    made = command("profile", "create", "here", "--bootstrap", secure.bootstrap, "--command-config", str(properties))
    assert made[0] == 0, made
    (file,) = (tmp_path / "config").rglob("here.properties")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert command("produce", "orders", given="one\ntwo\n")[0] == 0
    assert command("consume", "orders", "-n", "2")[1] == "one\ntwo\n"
    assert command("consume", "orders", "--group", "g", "-n", "2")[1] == "one\ntwo\n"
    assert "healthy" in command("cluster", "health")[1]  # over HTTPS
    assert "here" in command("profile", "list")[1]
    assert command("events", "create", "spans")[0] == 0
    assert command("transaction", "list")[0] == 0
    file.chmod(0o644)
    code, _, said = command("topic", "list")
    assert (code, "chmod 600" in said) == (1, True)


def test_a_command_with_an_address_of_its_own_uses_no_profile(secure, command):
    pairs = ("-X", "security.protocol=SSL", "-X", f"ssl.ca.location={secure.ca_path}")
    assert command("profile", "create", "here", "--bootstrap", "127.0.0.1:1", *pairs)[0] == 0
    at = ("--bootstrap", secure.bootstrap)
    code, _, said = command("topic", "list", *at, "--timeout", "3")
    assert (code, "the broker takes TLS only; add -X security.protocol=SSL" in said) == (1, True)
    assert command("topic", "list", *at, *pairs)[0] == 0
    assert command("topic", "list", *at, "--profile", "here")[0] == 0
    code, _, said = command("topic", "list", *at, "-X", "security.protocol=SSL", "--timeout", "3")
    assert (code, "its certificate is not taken: unable to get local issuer" in said) == (1, True)
    code, _, said = command("topic", "list", *at, "-X", "security.protokol=SSL")
    assert (code, "did you mean security.protocol?" in said) == (2, True)
    assert command("topic", "list", "--profile", "nowhere")[0] == 1


def test_our_client_checks_the_name_and_the_authority(secure):
    given = {name: value for name, value in secure.client.items() if name != "bootstrap.servers"}
    with Cluster(secure.bootstrap, security=read_security(given)) as cluster:
        assert cluster.metadata(["orders"]).topics["orders"].error_code == 0
    for other in ({"ssl.ca.location": ""}, {}):
        security = read_security({"security.protocol": "SSL", **other})
        with Cluster(secure.bootstrap, security=security, timeout_s=60) as cluster, pytest.raises(Rejected) as failure:
            cluster.metadata([])
        assert "its certificate is not taken" in failure.value.message


def test_events_go_over_tls_and_the_client_travels_with_its_security(secure):
    given = {name: value for name, value in secure.client.items() if name != "bootstrap.servers"}
    with EventsClient(secure.bootstrap, security=read_security(given)) as client:
        client.create_topic("runs")
        again = pickle.loads(pickle.dumps(client))
        try:
            topic = again.open_topic("runs")
            with topic.producer() as producer:
                assert producer.push({"run": 1}, b"data" * 100_000).result(60) == 0
        finally:
            again.close()
        assert [one.metadata for one in _pulled(client.open_topic("runs"), 1)] == [{"run": 1}]


def _pulled(topic, count):
    with topic.consumer("reader") as consumer:
        return [consumer.pull(60) for _ in range(count)]


def test_the_http_port_is_https(secure):
    context = ssl.create_default_context(cafile=str(secure.ca_path))
    with urllib.request.urlopen(f"{secure.http}/healthz", context=context, timeout=60) as answer:
        assert answer.status == 200


@pytest.fixture(scope="module")
def with_logins(tmp_path_factory):
    """Users log in over TLS; a second listener, for this machine, is where they are made."""
    keys = tmp_path_factory.mktemp("keys")
    settings = {
        "ssl.keystore.location": certificates.write(keys, "broker", hosts=certificates.HOSTS),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "super.users": "User:alice",
        "allow.everyone.if.no.acl.found": "true",
        "connection.failed.authentication.delay.ms": 0,
    }
    listen = "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0"
    with broker(settings=settings, listen=listen, shards=1) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            user = UserScramCredentialUpsertion("alice", info, PASSWORD.encode())
            admin.alter_user_scram_credentials([user])["alice"].result(60)
        running.secure_address = running.about()["listeners"]["SASL_SSL"]
        running.given = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(keys / "ca.pem"),
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
        }
        yield running


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_our_clients_log_in(with_logins, mechanism):
    security = read_security({**with_logins.given, "sasl.mechanism": mechanism})
    with Cluster(with_logins.secure_address, security=security) as cluster:
        assert cluster.metadata([]).brokers
    with EventsClient(with_logins.secure_address, security=security) as client:
        client.create_topic(f"runs-{mechanism}")
        assert client.topic_exists(f"runs-{mechanism}")


def test_a_login_that_fails_is_said_and_not_tried_again(with_logins):
    for change, words in (
        ({"sasl.password": "wrong"}, "the login failed"),
        ({"sasl.username": "nobody"}, "the login failed"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "x"}, "takes no logins by OAUTHBEARER"),
    ):
        given = {**with_logins.given, "sasl.mechanism": "SCRAM-SHA-256", **change}
        with (
            Cluster(with_logins.secure_address, security=read_security(given)) as cluster,
            pytest.raises(Rejected) as failure,
        ):
            cluster.metadata([])
        assert words in failure.value.message
        assert "wrong" not in failure.value.message


def test_commands_log_in_by_a_file_that_names_its_secret(with_logins, command, tmp_path):
    (tmp_path / "secret").write_text(PASSWORD)
    lines = {
        **with_logins.given,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.password": f"${{file:{tmp_path / 'secret'}}}",
    }
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    at = ("--bootstrap", with_logins.secure_address, "--command-config", str(properties))
    assert command("topic", "create", "orders", *at)[0] == 0
    assert command("produce", "orders", *at, given="one\n")[0] == 0
    assert command("consume", "orders", *at, "-n", "1")[1] == "one\n"
    assert PASSWORD not in with_logins.log_path.read_text()
