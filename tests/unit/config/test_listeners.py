"""Listeners and what is advertised of them."""

import pytest

from millstream.config import ConfigError, Settings
from millstream.config.listeners import Listener, Listeners, ProtocolMap, is_every_interface

MAP = "PLAINTEXT:PLAINTEXT,LAN:PLAINTEXT,SIX:PLAINTEXT,SAFE:SSL"


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
        ("SSL://h:1", "", "SSL uses SSL: TLS and SASL are not supported"),
        ("LAN://h:1,LAN://h:2", "", "LAN is given twice"),
        ("PLAINTEXT://h:1,LAN://i:1", "", "port 1 is given twice"),
        ("PLAINTEXT://[::1]:1,LAN://[::2]:1", "", "port 1 is given twice"),
        ("PLAINTEXT://h:1", "LAN://i:1", "advertised.listeners: LAN is none of the listeners, PLAINTEXT"),
        ("PLAINTEXT://h:1", "PLAINTEXT://i:1,PLAINTEXT://i:2", "PLAINTEXT is given twice"),
        ("PLAINTEXT://0.0.0.0:1", "PLAINTEXT://0.0.0.0:1", "nobody can connect to 0.0.0.0:1"),
        ("PLAINTEXT://[::]:1", "PLAINTEXT://[::]:1", "nobody can connect to [::]:1"),
    ],
)
def test_listeners_that_make_no_sense_are_refused_with_the_remedy(listen, advertised, words):
    options = {} if listen == "LAN://h:1" or listen.startswith("SSL") else {"listener_security_protocol_map": MAP}
    with pytest.raises(ConfigError) as failure:
        Settings(shards=1, listen=listen, advertised_listeners=advertised, **options)
    assert words in failure.value.message


def test_a_tls_listener_is_refused_whatever_its_name():
    with pytest.raises(ConfigError, match="SAFE uses SSL"):
        Settings(shards=1, listen="PLAINTEXT://h:1,SAFE://h:2", listener_security_protocol_map=MAP)


def test_an_ipv4_and_an_ipv6_listener_share_a_port_and_free_ports_are_no_ports():
    four_six = Settings(shards=1, listen="LAN://0.0.0.0:1,SIX://[::]:1", listener_security_protocol_map=MAP)
    assert [each.port for each in four_six.listen] == [1, 1]
    Settings(shards=1, listen="LAN://h:0,SIX://h:0", listener_security_protocol_map=MAP)


def test_every_interface_is_told_from_an_address():
    assert [is_every_interface(host) for host in ("0.0.0.0", "::", "127.0.0.1", "::1", "h")] == [True, True] + [
        False
    ] * 3
