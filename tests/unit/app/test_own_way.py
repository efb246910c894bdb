"""How a broker's own clients, such as its schema registry, reach its cluster."""

import pytest

from millstream.app.own_way import OwnWay, callers_way, own_way
from millstream.client.security import PLAIN
from millstream.config import ConfigError
from millstream.config.load import load_settings
from millstream.peers.secured import CALLER_OPENING, CLIENT_OPENING, OpeningKind, decode_opening

BOTH = "listeners=CLEAR://127.0.0.1:1,SAFE://127.0.0.1:2"
SAFE = "listeners=SAFE://127.0.0.1:2"
MAP = "listener.security.protocol.map=CLEAR:PLAINTEXT,SAFE:SASL_SSL"
KEYS = ("ssl.keystore.location=/k",)
PEER = ("listener.name.peer.ssl.keystore.location=/p", "listener.name.peer.ssl.truststore.location=/t")
CLUSTER = ("peer.listen=b1:9192", "seeds=b1:9192", "node.id=1")
TLS = ("peer.security.protocol=SSL", *PEER)


def way(listeners, *overrides, of_callers=False):
    settings = load_settings(None, [MAP, *KEYS, listeners, *overrides], {"shards": 1, "data_dir": "/data"})
    reached = {each.name: f"{each.host}:{each.port}" for each in settings.listen}
    found = own_way(settings, reached)
    return callers_way(settings, found) if of_callers else found


def test_a_single_broker_is_reached_by_its_socket_file():
    for listeners in (BOTH, SAFE):
        assert way(listeners) == OwnWay("/data/admin.sock", PLAIN)


def test_a_cluster_with_tls_between_brokers_is_reached_by_its_peer_addresses():
    for listeners in (BOTH, SAFE):
        bootstrap, security = way(listeners, *CLUSTER, *TLS)
        assert bootstrap == "b1:9192"
        assert (security.protocol, security.login) == ("SSL", None)
        assert (security.tls.keystore_location, security.tls.truststore_location) == ("/p", "/t")
        assert decode_opening(security.opening) == (OpeningKind.CLIENT, 0)
        assert security.opening == CLIENT_OPENING


def test_without_tls_between_brokers_only_a_clear_listener_helps():
    assert way(BOTH, *CLUSTER) == OwnWay("127.0.0.1:1", PLAIN)
    assert way(SAFE, *CLUSTER).bootstrap == ""


def test_who_acts_for_callers_says_so_behind_tls_or_is_anonymous_where_all_are():
    bootstrap, security = way(SAFE, *CLUSTER, *TLS, of_callers=True)
    assert bootstrap == "b1:9192"
    assert (security.protocol, security.opening) == ("SASL_SSL", CALLER_OPENING)
    assert decode_opening(security.opening) == (OpeningKind.CALLER, 0)
    clear = "listeners=CLEAR://127.0.0.1:1"
    for more in ((), TLS):
        assert way(clear, *CLUSTER, *more, of_callers=True) == OwnWay("127.0.0.1:1", PLAIN)


def test_without_tls_between_brokers_nobody_acts_for_callers_where_access_is_controlled():
    for listeners in (BOTH, SAFE):
        assert way(listeners, *CLUSTER, of_callers=True).bootstrap == ""
        assert way(listeners, of_callers=True).bootstrap == ""  # a single broker makes the connections itself


def test_no_listener_of_clients_may_have_the_name_of_the_peer_address():
    with pytest.raises(ConfigError, match="PEER"):
        way("listeners=PEER://127.0.0.1:1", "listener.security.protocol.map=PEER:PLAINTEXT")
