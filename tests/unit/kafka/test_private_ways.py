"""Which clients may send passwords: those whose requests nobody on a network can read."""

from types import SimpleNamespace

import pytest

from millstream.config.listeners import HTTP_LISTENER, PEER_LISTENER
from millstream.kafka.handlers.access.alter_user_scram_credentials import is_private

NODE = SimpleNamespace(
    settings=SimpleNamespace(listener_security_protocol_map=(("CLEAR", "SASL_PLAINTEXT"), ("TLS", "SASL_SSL")))
)


@pytest.mark.parametrize(
    ("listener", "host", "private"),
    [
        ("CLEAR", "10.0.0.7", False),
        ("CLEAR", "127.0.0.1", True),
        ("CLEAR", "10.0.0.1", True),
        ("TLS", "10.0.0.7", True),
        (HTTP_LISTENER, "10.0.0.7", True),
        (PEER_LISTENER, "10.0.0.7", True),
        ("", "10.0.0.7", False),
    ],
)
def test_a_way_is_private_by_its_listener_or_on_one_machine(listener, host, private):
    context = SimpleNamespace(listener=listener, host=host, local_host="10.0.0.1")
    assert is_private(NODE, context) is private


def test_a_listener_of_kafkas_protocol_with_the_name_of_the_brokers_own_is_not_private():
    node = SimpleNamespace(
        settings=SimpleNamespace(listener_security_protocol_map=((PEER_LISTENER, "SASL_PLAINTEXT"),))
    )
    assert not is_private(node, SimpleNamespace(listener=PEER_LISTENER, host="10.0.0.7", local_host="10.0.0.1"))
