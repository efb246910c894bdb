"""Principals: who a client is, as Kafka writes it: a type, a colon and a name, such as ``User:alice``."""

from typing import Final

ANONYMOUS: Final = "User:ANONYMOUS"
"""A client that has proved nothing about itself."""

SOCKET_FILE: Final = "SocketFile:admin"
"""The user that runs the broker, who came through its socket file; or a client of a broker's own, over
TLS between brokers. No login and no certificate gives this principal."""
