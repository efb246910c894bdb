"""Queues of connections that are not yet accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.tune.finding import Check, Seen, sysctl

if TYPE_CHECKING:
    from millstream.tune.facts import Facts


def _accepted(facts: Facts) -> Seen:
    return sysctl(facts, "net.core.somaxconn", 4096, lambda value: value >= 4096, of_host=False)


def _half_open(facts: Facts) -> Seen:
    return sysctl(facts, "net.ipv4.tcp_max_syn_backlog", 4096, lambda value: value >= 4096, of_host=False)


ACCEPT = Check(
    "somaxconn", "Clients that return at once after a restart are refused when the accept queue is full.", _accepted
)
SYN = Check("syn_backlog", "The same holds for connections whose handshake is not complete.", _half_open)
