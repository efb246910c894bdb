"""Which addresses are refused at the start because others reach them."""

import pytest

from millstream.config import ConfigError
from millstream.config.exposure import check_exposure, exposed
from millstream.config.load import load_settings

SSL = ("listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",)
KEYS = ("listener.name.peer.ssl.keystore.location=/p", "listener.name.peer.ssl.truststore.location=/t")
PEER = ("seeds=b:1", "node.id=1")
LOCAL_HTTP = ("http.listen=127.0.0.1:0",)


def settings(*overrides):
    return load_settings(None, [*SSL, *overrides], {"shards": 1})


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("listeners=localhost:9092",),
        ("listeners=PLAINTEXT://[::1]:9092",),
        ("listeners=SSL://0.0.0.0:9093", "ssl.client.auth=required", *LOCAL_HTTP),
        ("listeners=SASL_SSL://0.0.0.0:9093", *LOCAL_HTTP),
        ("listeners=SASL_PLAINTEXT://0.0.0.0:9093", *LOCAL_HTTP),
        ("http.listen=0.0.0.0:1", "http.security.protocol=SSL", "listener.name.http.ssl.client.auth=requested"),
        ("listeners=SASL_SSL://0.0.0.0:9093", "http.listen=0.0.0.0:1", "http.security.protocol=SSL"),
        ("peer.listen=b:1", *PEER, "peer.security.protocol=SSL", *KEYS),
        ("peer.listen=127.0.0.1:1", *PEER),
    ],
)
def test_what_proves_itself_or_is_local_starts(overrides):
    assert exposed(settings(*overrides)) == []
    check_exposure(settings(*overrides))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("listeners=0.0.0.0:9092", *LOCAL_HTTP), "PLAINTEXT://0.0.0.0:9092 is clear"),
        (("listeners=[::]:9092", *LOCAL_HTTP), "is clear"),
        (("listeners=10.0.0.7:9092", *LOCAL_HTTP), "is clear"),
        (("listeners=SSL://0.0.0.0:9093", *LOCAL_HTTP), "ssl.client.auth=none"),
        (("listeners=SSL://0.0.0.0:9093", "ssl.client.auth=requested", *LOCAL_HTTP), "ssl.client.auth=requested"),
        (("http.listen=0.0.0.0:1",), "the HTTP port on 0.0.0.0 is clear"),
        (("http.listen=0.0.0.0:1", "http.security.protocol=SSL"), "does not ask who its clients are"),
        (("listeners=SASL_SSL://0.0.0.0:9093", "http.listen=0.0.0.0:1"), "the HTTP port on 0.0.0.0 is clear"),
        (("peer.listen=b:1", *PEER), "peer.listen=b:1 is clear"),
    ],
)
def test_what_others_reach_is_refused_with_three_remedies(overrides, words):
    with pytest.raises(ConfigError) as refusal:
        check_exposure(settings(*overrides))
    for word in (words, "millstream security init", "127.0.0.1", "insecure.listeners=allow"):
        assert word in refusal.value.message
    check_exposure(settings(*overrides, "insecure.listeners=allow"))


def test_a_listener_on_every_interface_takes_its_http_port_along():
    assert len(exposed(settings("listeners=0.0.0.0:9092"))) == 2
