"""A login goes to the registry of the brokers that it is for, and to no other host."""

import io
import urllib.request

import pytest

from millstream.cli import identity
from millstream.cli.broker_http import registry_conf
from millstream.cli.schema import ask
from millstream.client.security import read_security
from millstream.console.registry import Registry

WORD = "word-of-the-brokers"
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": WORD,
}
BROKERS = "b1.example:9092, [2001:db8::7]:9092"
OWN = ["https://b1.example:9644", "https://[2001:db8::7]:9644", "https://127.0.0.1:9644"]
FOREIGN = ["https://registry.example", "https://b1.example.org:9644", "https://b1.example@registry.example"]


@pytest.fixture
def asked(monkeypatch):
    """The requests that were sent; each is answered with no subjects."""
    requests = []

    def urlopen(request, **_):
        requests.append(request)
        return io.BytesIO(b"[]")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return requests


@pytest.fixture
def properties(monkeypatch):
    """Sets the properties of the command that runs."""
    monkeypatch.setattr(identity, "_current", identity._Current())
    return lambda found: identity.use(lambda: found)


@pytest.mark.parametrize("url", [*OWN, *FOREIGN])
def test_only_a_registry_of_the_brokers_gets_their_login(asked, properties, url):
    properties({**LOGIN, "bootstrap.servers": BROKERS})
    assert ask(url, "GET", "/subjects") == []
    assert Registry(url, read_security(LOGIN), BROKERS).subjects() == []
    assert ["Authorization" in request.headers for request in asked] == [url in OWN] * 2
    assert ("basic.auth.user.info" in registry_conf(url)) == (url in OWN)


def test_a_command_with_no_address_but_the_registrys_logs_in_there(asked, properties):
    properties(LOGIN)
    ask(FOREIGN[0], "GET", "/subjects")
    assert "Authorization" in asked[0].headers


def test_a_console_that_knows_no_brokers_shows_its_login_on_this_machine_alone(asked):
    for url in (OWN[0], OWN[2]):
        Registry(url, read_security(LOGIN)).subjects()
    assert ["Authorization" in request.headers for request in asked] == [False, True]
