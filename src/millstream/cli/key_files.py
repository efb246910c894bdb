"""The directory of keys that ``millstream security`` makes: authorities, brokers, users.

::

    DIR/ca.pem, ca.key               the authority of clients, and of what brokers show them
    DIR/peer-ca.pem, peer-ca.key     the authority of brokers, for what they show each other
    DIR/NODE/                        all that one broker needs, to be copied to its machine
        broker.pem, peer.pem         keys and certificates
        ca.pem, peer-ca.pem
        broker.properties            settings: start --config
    DIR/users/NAME/                  all that one client needs
        client.pem, ca.pem
        client.properties            --command-config, and any client of Kafka

Directories have mode 0700, keys 0600. ``DIR/keys.json`` says for which hosts each node's certificate is; it has no
secret. A file is replaced as a whole, so a broker reads the old one or the new one. Keys of the
authorities are needed for new certificates only: they may be kept elsewhere.

Paths in the properties are absolute below `place`, which is where the node's directory will be on its machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import msgspec

from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.secure.authority import CERTIFICATE_DAYS, Pair, issue, make_authority
from millstream.secure.subject import CertificateFacts, own_certificate

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_RULE: Final = "RULE:^CN=([^,]+).*$/$1/"


class _Known(msgspec.Struct):
    """``keys.json``."""

    nodes: dict[str, list[str]] = {}
    users: list[str] = []
    superuser: str = ""
    """The first user, who may do everything."""


class KeyFiles:
    """One directory of keys.

    Lifecycle: ``create`` makes it; any command opens it by its path afterwards.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known_path = directory / "keys.json"

    def create(self, superuser: str) -> None:
        """Make the authorities. A directory with anything in it is refused."""
        _checked(superuser)
        if self.directory.exists() and any(self.directory.iterdir()):
            raise CommandFailed(f"{self.directory} is not empty; give a new directory, or use 'millstream security'")
        _directory(self.directory)
        for stem, name in (("ca", "Millstream clients"), ("peer-ca", "Millstream brokers")):
            pair = make_authority(name)
            _write(self.directory / f"{stem}.key", pair.key)
            _write(self.directory / f"{stem}.pem", pair.certificate)
        self._keep(_Known(superuser=superuser))

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes that have certificates."""
        return sorted(self._load().nodes)

    @property
    def users(self) -> list[str]:
        """Names of the users that have certificates."""
        return sorted(self._load().users)

    def add_node(self, node: str, hosts: list[str], place: Path | None = None) -> Path:
        """Make the directory of a node, whose certificates are for ``hosts`` and loopback."""
        known = self._load()
        known.nodes[_checked(node)] = list(dict.fromkeys([node, *hosts, *LOOPBACK]))
        self._keep(known)
        home = _directory(self.directory / node)
        self._issue_node(node, known.nodes[node])
        for name in ("ca.pem", "peer-ca.pem"):
            _write(home / name, (self.directory / name).read_bytes())
        _write(home / "broker.properties", _broker_properties(place or home.resolve(), known.superuser).encode())
        return home

    def add_user(self, user: str) -> Path:
        """Make the directory of a user."""
        known = self._load()
        known.users = sorted({*known.users, _checked(user)})
        self._keep(known)
        home = _directory(_directory(self.directory / "users") / user)
        self._issue_user(user)
        _write(home / "ca.pem", (self.directory / "ca.pem").read_bytes())
        _write(home / "client.properties", _client_properties(home.resolve()).encode())
        return home

    def renew(self, names: list[str]) -> list[tuple[str, CertificateFacts]]:
        """New keys and certificates for nodes and users (all without names); name and end of each."""
        known = self._load()
        every = [*known.nodes, *known.users]
        unknown = [name for name in names if name not in every]
        if unknown:
            raise CommandFailed(f"{self.directory} has no node or user {unknown[0]!r}; it has {', '.join(every)}")
        renewed: list[tuple[str, CertificateFacts]] = []
        for name in names or every:
            if name in known.nodes:
                renewed.append((name, self._issue_node(name, known.nodes[name])))
            if name in known.users:
                renewed.append((name, self._issue_user(name)))
        return renewed

    def _issue_node(self, node: str, hosts: list[str]) -> CertificateFacts:
        home = self.directory / node
        for stem, authority in (("broker", "ca"), ("peer", "peer-ca")):
            pair = issue(self._authority(authority), node[:64], hosts, days=CERTIFICATE_DAYS)
            _write(home / f"{stem}.pem", pair.key + pair.certificate)
        return own_certificate((home / "broker.pem").read_bytes())

    def _issue_user(self, user: str) -> CertificateFacts:
        pair = issue(self._authority("ca"), user, days=CERTIFICATE_DAYS)
        _write(self.directory / "users" / user / "client.pem", pair.key + pair.certificate)
        return own_certificate(pair.certificate)

    def _authority(self, stem: str) -> Pair:
        try:
            return Pair((self.directory / f"{stem}.key").read_bytes(), (self.directory / f"{stem}.pem").read_bytes())
        except OSError as error:
            raise CommandFailed(
                f"{error.filename}: {(error.strerror or '').lower()}; new certificates need the authority's key"
            ) from None

    def _load(self) -> _Known:
        try:
            return msgspec.json.decode(self._known_path.read_bytes(), type=_Known)
        except (OSError, msgspec.DecodeError):
            raise CommandFailed(
                f"{self.directory} is no directory of keys; 'millstream security init {self.directory}' makes one"
            ) from None

    def _keep(self, known: _Known) -> None:
        _write(self._known_path, msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None or name in ("users", "ca", "peer-ca"):
        raise WrongUsage(f"{name!r} is no name of a node or user, expected letters, digits, '-', '_', '.' and ':'")
    return name


def _directory(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, with one that only its owner can read."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _broker_properties(place: Path, superuser: str) -> str:
    return f"""# Settings of a broker: millstream start --config {place}/broker.properties --listen SSL://HOST:9093 …
ssl.keystore.location={place}/broker.pem
ssl.truststore.location={place}/ca.pem
ssl.client.auth=required
ssl.principal.mapping.rules={_RULE}
super.users=User:{superuser}
http.security.protocol=SSL
listener.name.http.ssl.client.auth=requested
peer.security.protocol=SSL
listener.name.peer.ssl.keystore.location={place}/peer.pem
listener.name.peer.ssl.truststore.location={place}/peer-ca.pem
"""


def _client_properties(place: Path) -> str:
    return f"""# Properties of a client of Kafka, in Java's spelling.
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.location={place}/ca.pem
ssl.keystore.type=PEM
ssl.keystore.location={place}/client.pem
"""
