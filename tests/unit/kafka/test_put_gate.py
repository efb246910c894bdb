"""A listener that demands a login has a gate before each connection, also where it offers no mechanism."""

from unittest.mock import MagicMock

import pytest

from millstream.kafka.logins.gate import Gate, put_gate


@pytest.mark.parametrize(("demanded", "gated"), [(None, False), ((), True), (("PLAIN",), True)])
def test_only_a_listener_without_logins_has_no_gate(demanded, gated):
    connection, logins = MagicMock(), MagicMock()
    connection.client.gate = None
    logins.demanded.return_value = demanded
    put_gate(connection, logins)
    assert isinstance(connection.client.gate, Gate) == gated
    assert logins.began.called == gated
