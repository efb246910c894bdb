"""A login goes to the registry of the brokers that it is for, and to no other host."""

import io
import urllib.request

import pytest

from millstream.cli import identity
from millstream.cli.broker_http import registry_of
from millstream.cli.failure import WrongUsage
from millstream.cli.schema import ask
from millstream.client.schema_registry import registry_access
from millstream.client.security import read_security
from millstream.console.registry import Registry
from millstream.spark.options import READ, parse_options

WORD = "word-of-the-brokers"
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": WORD,
}
BROKERS = "b1.example:9092, [2001:db8::7]:9092"
OWN = ["https://b1.example:9644", "https://[2001:db8::7]:9644", "https://127.0.0.1:9644"]
FOREIGN = ["https://registry.example", "https://b1.example.org:9644"]


@pytest.fixture
def asked(monkeypatch):
    """The requests that were sent; each is answered with no subjects."""
    requests = []

    def opened(_, request, **__):
        requests.append(request)
        return io.BytesIO(b"[]")

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", opened)
    return requests


@pytest.fixture
def properties(monkeypatch):
    """Sets the properties of the command that runs."""
    monkeypatch.setattr(identity, "_current", identity._Current())
    return lambda found: identity.use(lambda: found)


def spark(url):
    options = {f"kafka.{name}": text for name, text in LOGIN.items()}
    return {**options, "kafka.bootstrap.servers": BROKERS, "schema.registry.url": url}


@pytest.mark.parametrize("url", [*OWN, *FOREIGN])
def test_only_a_registry_of_the_brokers_gets_their_login(asked, properties, url):
    properties({**LOGIN, "bootstrap.servers": BROKERS})
    assert ask(registry_of(url), "GET", "/subjects") == []
    console = registry_access(url, {}, read_security(LOGIN), BROKERS)
    assert Registry(console).subjects() == []
    ask(parse_options(spark(url), READ).registry, "GET", "/subjects")
    properties(LOGIN)
    ask(registry_of(url, BROKERS), "GET", "/subjects")  # a command with --bootstrap
    assert ["Authorization" in request.headers for request in asked] == [url in OWN] * 4


def test_a_command_with_no_address_but_the_registrys_logs_in_there(asked, properties):
    properties(LOGIN)
    ask(registry_of(FOREIGN[0]), "GET", "/subjects")
    assert "Authorization" in asked[0].headers


def test_a_command_with_a_socket_file_shows_no_login_to_another_host(asked, properties):
    properties(LOGIN)
    ask(registry_of(FOREIGN[0], ""), "GET", "/subjects")
    assert "Authorization" not in asked[0].headers


def test_the_registry_and_its_login_may_stand_among_the_properties(asked, properties):
    own = {"schema.registry.url": FOREIGN[0], "basic.auth.user.info": "bob:own-word"}
    properties({**LOGIN, **own, "bootstrap.servers": BROKERS})
    ask(registry_of(None), "GET", "/subjects")
    assert asked[0].full_url == f"{FOREIGN[0]}/subjects"
    assert asked[0].headers["Authorization"] == "Basic Ym9iOm93bi13b3Jk"
    properties({"basic.auth.user.inf": "bob:own-word"})
    with pytest.raises(WrongUsage, match=r"did you mean basic\.auth\.user\.info"):
        registry_of(None)


def test_a_console_that_knows_no_brokers_shows_its_login_on_this_machine_alone(asked):
    for url in (OWN[0], OWN[2]):
        Registry(registry_access(url, {}, read_security(LOGIN))).subjects()
    assert ["Authorization" in request.headers for request in asked] == [False, True]
