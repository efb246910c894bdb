"""Listeners and what is advertised of them."""

import pytest

from millstream.config import ConfigError, Settings
from millstream.config.describe import describe_node
from millstream.config.listeners import Listener, Listeners, ProtocolMap, is_every_interface
from millstream.config.load import load_settings

MAP = "PLAINTEXT:PLAINTEXT,LAN:PLAINTEXT,SIX:PLAINTEXT,SAFE:SSL,LOGIN:SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("text", "listeners"),
    [
        ("h:9092", [("PLAINTEXT", "h", 9092)]),
        ("lan://h:1, SIX://[::1]:2", [("LAN", "h", 1), ("SIX", "::1", 2)]),
        ("PLAINTEXT://:9092", [("PLAINTEXT", "0.0.0.0", 9092)]),
        ("SIX://[::]:0", [("SIX", "::", 0)]),
    ],
)
def test_listeners_are_read_and_written_as_kafka_does(text, listeners):
    form = Listeners()
    found = form.read(text)
    assert list(found) == [Listener(*each) for each in listeners]
    assert form.read(form.write(found)) == found


@pytest.mark.parametrize("text", ["", "h", "h:", "LAN://", "://h:1", "a b://h:1", "h:99999", "::1:9092", "h:1,,h:2"])
def test_what_is_no_listener_is_refused(text):
    with pytest.raises(ValueError):
        Listeners().read(text)


def test_nothing_may_be_advertised_but_no_port_0():
    form = Listeners(lowest_port=1, optional=True)
    assert form.read(" ") == ()
    assert form.write(()) is None
    with pytest.raises(ValueError):
        form.read("h:0")


def test_a_protocol_map_knows_kafkas_protocols_alone():
    form = ProtocolMap()
    assert form.read("lan:plaintext,SAFE:SASL_SSL") == (("LAN", "PLAINTEXT"), ("SAFE", "SASL_SSL"))
    for bad in ("LAN", "LAN:TELNET", "LAN:PLAINTEXT,LAN:SSL", ""):
        with pytest.raises(ValueError):
            form.read(bad)


@pytest.mark.parametrize(
    ("listen", "advertised", "words"),
    [
        ("LAN://h:1", "", "LAN:PLAINTEXT to listener.security.protocol.map"),
        ("LAN://h:1,LAN://h:2", "", "LAN is given twice"),
        ("PLAINTEXT://h:1,LAN://i:1", "", "port 1 is given twice"),
        ("PLAINTEXT://[::1]:1,LAN://[::2]:1", "", "port 1 is given twice"),
        ("PLAINTEXT://h:1", "LAN://i:1", "advertised.listeners: LAN is not one of the listeners PLAINTEXT"),
        ("PLAINTEXT://h:1", "PLAINTEXT://i:1,PLAINTEXT://i:2", "PLAINTEXT is given twice"),
        ("PLAINTEXT://0.0.0.0:1", "PLAINTEXT://0.0.0.0:1", "nobody can connect to 0.0.0.0:1"),
        ("PLAINTEXT://[::]:1", "PLAINTEXT://[::]:1", "nobody can connect to [::]:1"),
    ],
)
def test_listeners_that_make_no_sense_are_refused_with_the_remedy(listen, advertised, words):
    options = {} if listen == "LAN://h:1" or listen.startswith("SASL") else {"listener_security_protocol_map": MAP}
    with pytest.raises(ConfigError) as failure:
        Settings(shards=1, listen=listen, advertised_listeners=advertised, **options)
    assert words in failure.value.message


@pytest.mark.parametrize(
    ("host", "mechanisms", "refused"),
    [
        ("10.1.2.3", "PLAIN", True),
        ("broker-1", "SCRAM-SHA-256,PLAIN", True),
        ("broker-1", "SCRAM-SHA-256", False),
        ("127.0.0.1", "PLAIN", False),
        ("[::1]", "PLAIN", False),
        ("localhost", "PLAIN", False),
    ],
)
def test_passwords_in_clear_over_a_network_are_refused_with_three_remedies(host, mechanisms, refused):
    options = ["listener.security.protocol.map=LOGIN:SASL_PLAINTEXT", f"listeners=LOGIN://{host}:1"]
    options.append(f"listener.name.login.sasl.enabled.mechanisms={mechanisms}")
    if not refused:
        assert load_settings(None, options).for_listener("LOGIN").sasl_enabled_mechanisms == tuple(
            mechanisms.split(",")
        )
        return
    with pytest.raises(ConfigError) as failure:
        load_settings(None, options)
    for remedy in ("SASL_SSL", "SCRAM-SHA-512", "127.0.0.1"):
        assert remedy in failure.value.message


def test_kerberos_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="Kerberos"):
        load_settings(None, ["sasl.enabled.mechanisms=GSSAPI"])


@pytest.mark.parametrize("missing", ["jwks.endpoint.url", "expected.issuer", "expected.audience", ""])
def test_tokens_are_taken_only_of_a_known_issuer_for_a_known_audience(missing):
    given = {
        "jwks.endpoint.url": "https://id.example.org/keys",
        "expected.issuer": "https://id.example.org",
        "expected.audience": "kafka",
    }
    options = ["listeners=S://127.0.0.1:1", "listener.security.protocol.map=S:SASL_PLAINTEXT"]
    options += [f"sasl.oauthbearer.{name}={value}" for name, value in given.items() if name != missing]
    options.append("sasl.enabled.mechanisms=OAUTHBEARER")
    if not missing:
        assert load_settings(None, options).sasl_oauthbearer_expected_audience == ("kafka",)
        return
    with pytest.raises(ConfigError, match=missing):
        load_settings(None, options)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["issuer.url=https://id.example.org"], "client.id: is not given"),
        (["client.id=console"], "client.id: has no effect without console.oidc.issuer.url"),
        (["issuer.url=file:///keys", "client.id=console"], "issuer.url: .* expected https"),
        (["issuer.url=http://id.example.org", "client.id=console"], "issuer.url: .* expected https"),
        (["issuer.url=https://h", "client.id=c", "scope=profile"], "openid among them"),
        (["issuer.url=https://h", "client.id=c", "session.max.ms=1"], "session.max.ms"),
    ],
)
def test_a_sign_in_that_cannot_be_is_refused(given, why):
    with pytest.raises(ConfigError, match=why):
        load_settings(None, [f"console.oidc.{each}" for each in given])


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example.org/keys",
        "ftp://h/x",
        "https://user:pw@h/keys",
        "https:///x",
        "file://host/x",
        "keys",
        "https://[x",
    ],
)
def test_keys_come_from_a_file_or_over_tls(url):
    with pytest.raises(ConfigError):
        load_settings(None, [f"sasl.oauthbearer.jwks.endpoint.url={url}"])


def test_a_setting_of_one_listener_holds_for_it_alone():
    settings = load_settings(
        None,
        [
            "listeners=PLAINTEXT://h:1,SAFE://h:2",
            f"listener.security.protocol.map={MAP}",
            "ssl.client.auth=requested",
            "listener.name.safe.ssl.client.auth=required",
            "listener.name.http.ssl.keystore.location=/http.pem",
        ],
        {"shards": 1},
    )
    assert settings.ssl_client_auth == "requested"
    assert settings.for_listener("SAFE").ssl_client_auth == "required"
    assert settings.for_listener("PLAINTEXT").ssl_client_auth == "requested"
    assert settings.for_listener("HTTP").ssl_keystore_location == "/http.pem"
    shown = {entry.name: entry for entry in describe_node(settings)}
    assert shown["listener.name.safe.ssl.client.auth"].value == "required"


def test_secrets_of_a_listener_are_not_shown():
    settings = load_settings(None, ["listener.name.plaintext.ssl.key.password=hush"], {"shards": 1})
    assert settings.for_listener("PLAINTEXT").ssl_key_password == "hush"
    (entry,) = (entry for entry in describe_node(settings) if entry.name.startswith("listener.name."))
    assert entry.value is None
    assert "hush" not in repr(settings)
    with pytest.raises(ConfigError) as failure:
        load_settings(None, ["ssl.keystore.type=hush"])
    assert "'hush'" in failure.value.message  # a value that is no secret is shown


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("listener.name.plaintext.num.partitions=3", "num.partitions cannot be set for one listener"),
        ("listener.name.lan.ssl.client.auth=none", "LAN is not one of the listeners PLAINTEXT"),
        ("listener.name.plaintext.ssl.client.auht=none", "there is no such setting; did you mean ssl.client.auth"),
        ("listener.name.plaintext.ssl.client.auth=maybe", "'maybe' is not valid"),
        ("ssl.keystore.type=JKS", "keytool -importkeystore"),
    ],
)
def test_what_no_listener_can_have_is_refused(override, words):
    with pytest.raises(ConfigError) as failure:
        load_settings(None, [override], {"shards": 1})
    assert words in failure.value.message


def test_an_ipv4_and_an_ipv6_listener_share_a_port_and_free_ports_are_no_ports():
    four_six = Settings(shards=1, listen="LAN://0.0.0.0:1,SIX://[::]:1", listener_security_protocol_map=MAP)
    assert [each.port for each in four_six.listen] == [1, 1]
    Settings(shards=1, listen="LAN://h:0,SIX://h:0", listener_security_protocol_map=MAP)


def test_every_interface_is_told_from_an_address():
    assert [is_every_interface(host) for host in ("0.0.0.0", "::", "127.0.0.1", "::1", "h")] == [True, True] + [
        False
    ] * 3
