"""Ports that nobody names are free, and processes that draw them at once draw others."""

import random
import socket

from millstream.config.ports import free_ports, is_free


def test_one_seed_in_two_processes_does_not_give_them_the_same_ports():
    drawn = []
    for _ in range(2):
        random.seed(17)
        drawn.append(free_ports(3))
    assert drawn[0] != drawn[1]


def test_a_port_that_somebody_listens_on_is_not_free():
    (port,) = free_ports(1)
    assert is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
    assert len(set(free_ports(50))) == 50
