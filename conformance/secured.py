"""A broker of ours with logins and TLS, for the tests of suites that need them, beside the clear one of the others.

::

    listener    takes
    CLEAR       clear connections; their user is a superuser
    SSL         TLS
    LOGIN       SASL_PLAINTEXT: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
    SAFE        SASL_SSL, with the same

Users have the names and passwords that the suite's tests know. The authority's certificate is ``ca.pem`` in the folder
of keys. Access is controlled, and everything that no entry is about is open.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple

from conformance.brokers import EXPECTED, error_lines
from millstream.secure.authority import issue, make_authority
from millstream.testing.process import Broker

PROTOCOLS = {"CLEAR": "PLAINTEXT", "SSL": "SSL", "LOGIN": "SASL_PLAINTEXT", "SAFE": "SASL_SSL"}
HOSTS = ("localhost", "127.0.0.1")
CREATE_LIMIT_S = 120.0
NOTHING: Mapping[str, str] = {}


class Secured(NamedTuple):
    """Where it listens, by Kafka's name of the protocol, and the folder with ``ca.pem``."""

    addresses: Mapping[str, str]
    keys: Path


@contextlib.contextmanager
def secured(
    scratch: Path,
    users: Mapping[str, str],
    log: Path,
    complaints: list[str],
    more: Mapping[str, str] = NOTHING,
) -> Generator[Secured]:
    """Runs it, with ``more`` settings; ERROR lines of its log are added to ``complaints``, the log to ``log``."""
    keys = scratch / "keys"
    keys.mkdir()
    authority = make_authority("Conformance")
    pair = issue(authority, "broker", HOSTS)
    (keys / "broker.pem").write_bytes(pair.key + pair.certificate)
    (keys / "ca.pem").write_bytes(authority.certificate)
    settings = {
        **EXPECTED,
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.location": str(keys / "broker.pem"),
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
        **more,
    }
    listen = ",".join(f"{name}://127.0.0.1:0" for name in PROTOCOLS)
    with Broker(settings=settings, listen=listen, memory="512MiB") as broker:
        for user, password in users.items():
            create(broker, user, password, keys / "password")
        about = json.loads((broker.data_dir / "broker.json").read_text(encoding="utf-8"))["listeners"]
        try:
            yield Secured({protocol: about[name] for name, protocol in PROTOCOLS.items()}, keys)
        finally:
            text = broker.log_path.read_text(encoding="utf-8", errors="replace")
            complaints += error_lines(text)
            with open(log, "a", encoding="utf-8") as kept:
                kept.write(text)


def create(broker: Broker, user: str, password: str, file: Path) -> None:
    """Create a user with both kinds of SCRAM, through the socket file."""
    file.write_text(password, encoding="utf-8")
    for change, mechanism in (("create", "SCRAM-SHA-256"), ("alter", "SCRAM-SHA-512")):
        command = [sys.executable, "-m", "millstream.cli", "user", change, user, "--password-file", str(file)]
        arguments = ["--mechanism", mechanism, "--data", str(broker.data_dir)]
        subprocess.run([*command, *arguments], timeout=CREATE_LIMIT_S, check=True, capture_output=True)
    file.unlink()
