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
    code, _, said = command("topic", "list", *at, "--timeout", "3600")
    assert (code, "the broker takes TLS only; set security.protocol=SSL" in said) == (1, True)
    assert command("topic", "list", *at, *pairs)[0] == 0
    assert command("topic", "list", *at, "--profile", "here")[0] == 0
    code, _, said = command("topic", "list", *at, "-X", "security.protocol=SSL", "--timeout", "3600")
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


CLEAR, ENCRYPTED = "PLAINTEXT", "SASL_SSL"
MISTAKES = {
    "a wrong password": (ENCRYPTED, {"sasl.password": "wrong"}, "the login failed"),
    "an unknown user": (ENCRYPTED, {"sasl.username": "nobody"}, "the login failed"),
    "another mechanism": (
        ENCRYPTED,
        {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "x"},
        "takes no logins by OAUTHBEARER",
    ),
    "no login": (ENCRYPTED, {"security.protocol": "SSL"}, "asks for a login by PLAIN or SCRAM-SHA-256"),
    "no TLS": (ENCRYPTED, {"security.protocol": "SASL_PLAINTEXT"}, "the broker takes TLS only; set security.protocol"),
    "neither": (ENCRYPTED, {"security.protocol": "PLAINTEXT"}, "the broker takes TLS only; set security.protocol"),
    "another authority": (ENCRYPTED, {"ssl.ca.location": ""}, "its certificate is not taken"),
    "TLS in clear": (CLEAR, {}, "the broker does not take TLS there; set security.protocol=PLAINTEXT"),
    "a login to nobody": (CLEAR, {"security.protocol": "SASL_PLAINTEXT"}, "this listener asks for none"),
}
"""What a client has wrong, at which listener, and what it is told."""


def mistaken(with_logins, mistake):
    """The address, the properties of a client, and the words that it gets."""
    listener, change, words = MISTAKES[mistake]
    given = {**with_logins.given, "sasl.mechanism": "SCRAM-SHA-256", **change}
    if not given["security.protocol"].startswith("SASL"):
        given = {name: value for name, value in given.items() if not name.startswith("sasl.")}
    return with_logins.about()["listeners"][listener], given, words


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_a_client_is_said_at_its_first_attempt(with_logins, mistake):
    """An hour would pass before a client that tries again ends."""
    address, given, words = mistaken(with_logins, mistake)
    security = read_security(given)
    with Cluster(address, security=security, timeout_s=3600) as cluster, pytest.raises(Rejected) as failure:
        cluster.metadata([])
    assert words in failure.value.message
    with EventsClient(address, security=security, timeout_s=3600) as client, pytest.raises(Rejected) as failure:
        client.topic_exists("runs")
    assert words in failure.value.message


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_a_command_is_said_at_its_first_attempt(with_logins, command, mistake):
    address, given, words = mistaken(with_logins, mistake)
    pairs = [word for name, value in given.items() for word in ("-X", f"{name}={value}")]
    code, out, said = command("topic", "list", "--bootstrap", address, "--timeout", "3600", *pairs)
    assert (code, out, words in said) == (1, "", True), said
    assert PASSWORD not in said


COMMANDS = [
    ("status",),
    ("produce", "orders"),
    ("consume", "orders"),
    ("consume", "orders", "--group", "g"),
    ("top", "--once"),
    ("apply", "-f", "FILE"),
    ("cluster", "health"),
    ("cluster", "drain", "1"),
    ("tier", "status"),
    ("cache", "status"),
    ("topic", "create", "x"),
    ("topic", "trim", "x", "--before", "end"),
    ("events", "create", "x"),
    ("events", "consume", "x"),
    ("group", "list"),
    ("group", "reset", "g", "--topic", "t", "--to", "end"),
    ("user", "list"),
    ("acl", "list"),
    ("quota", "list"),
    ("transaction", "list"),
    ("config", "list", "--running"),
    ("logger", "list"),
    ("backup", "create", "--to", "BACKUP"),
]


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["a wrong password", "neither"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_says_it_at_once(with_logins, command, tmp_path, words, mistake):
    address, given, expected = mistaken(with_logins, mistake)
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    (tmp_path / "plan.yaml").write_text("topics: {orders: {}}\n")
    paths = {"FILE": str(tmp_path / "plan.yaml"), "BACKUP": f"file://{tmp_path}/backup"}
    words = [paths.get(word, word) for word in words]
    code, _, said = command(*words, "--bootstrap", address, "--timeout", "3600", "--command-config", str(properties))
    assert (code, expected in said) == (1, True), said


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
