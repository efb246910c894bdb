"""What answers at an address: nothing, HTTP, or something else that may be a broker."""

from __future__ import annotations

import socket
from enum import Enum
from typing import Final

from millstream.cli import identity
from millstream.config.forms import parse_endpoint
from millstream.errors import MillstreamError

KAFKA_PORT: Final = 9092
"""Port of an address that names none."""
_PATIENCE_S: Final = 1.0


class Found(Enum):
    """Who listens at an address."""

    NOTHING = "nothing"
    HTTP = "http"
    SOMETHING = "something"


def with_port(address: str) -> str:
    """``HOST:PORT`` of an address that may be a host alone."""
    return f"{address}:{KAFKA_PORT}" if address and (":" not in address or address.endswith("]")) else address


def what_answers(bootstrap: str) -> Found:
    """Look at the addresses in their order; the first that takes a connection decides."""
    for text in bootstrap.split(","):
        try:
            with socket.create_connection(parse_endpoint(with_port(text.strip())), _PATIENCE_S) as connection:
                return _asked(connection)
        except (OSError, ValueError):
            continue
    return Found.NOTHING


def _asked(connection: socket.socket) -> Found:
    """What a connection answers to a request of HTTP; Kafka's protocol ends such a connection without a byte."""
    try:
        connection.sendall(b"HEAD /healthz HTTP/1.0\r\n\r\n")
        return Found.HTTP if connection.recv(5) == b"HTTP/" else Found.SOMETHING
    except OSError:
        return Found.SOMETHING


def unreached(bootstrap: str) -> str:
    """What is wrong with an address that the brokers themselves name, if one is not reached; else empty."""
    from millstream.client.cluster import Cluster

    try:
        with Cluster(bootstrap, timeout_s=_PATIENCE_S, security=identity.security()) as cluster:
            for broker in cluster.metadata_once([]).brokers.values():
                try:
                    cluster.connect(broker.node_id).close()
                except MillstreamError as error:
                    return f"broker {broker.node_id} names {broker.host}:{broker.port} as its address: {error.message}"
    except MillstreamError:
        return ""
    return ""
