"""Key material of the broker's listeners: read at the start, again when it changes, and handed to the shards.

::

    files ──every 10 s, SIGHUP, HTTP──► supervisor: tries contexts ──ok──► shards (control channel), HTTP port
                                                     └─ bad ─► nothing changes, one ERROR line for each change

The supervisor alone reads files. It looks at (inode, mtime) of each, by the name that was given, so that a link that is
turned to another file (as Kubernetes does with secrets) is a change. It makes contexts of what it has read before it
passes it on. A shard makes its own contexts of the same material. Connections that are open stay as they are; the
next handshake uses the new certificate.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from millstream.config.listeners import HTTP_LISTENER, PEER_LISTENER, protocol_of, speaks_tls
from millstream.config.properties.security import SSL
from millstream.config.settings import Settings
from millstream.errors import Rejected
from millstream.peers.secured import PeerTls
from millstream.secure.endpoint import Credentials, ServerTls
from millstream.secure.material import read_material
from millstream.secure.options import REQUIRED, TlsOptions
from millstream.secure.subject import CertificateFacts, own_certificate
from millstream.shard.control import ControlEnd
from millstream.shard.reactor import Reactor
from millstream.telemetry.log import log
from millstream.telemetry.metrics import StatsSlab

LOOK_US: Final = 10_000_000
NEW_CREDENTIALS: Final = "new_credentials"
"""On the control channel: the listeners' new key material."""
_TIMEOUT_US: Final = 10_000_000
_DAY_S: Final = 86_400

Stamp = tuple[tuple[int, int], ...]


def tls_options(settings: Settings, listener: str) -> TlsOptions:
    """The settings of TLS for one listener."""
    own = settings.for_listener(listener)
    return TlsOptions(
        keystore_type=own.ssl_keystore_type,
        keystore_location=own.ssl_keystore_location,
        keystore_password=own.ssl_keystore_password,
        key_password=own.ssl_key_password,
        keystore_key=own.ssl_keystore_key,
        keystore_certificate_chain=own.ssl_keystore_certificate_chain,
        truststore_type=own.ssl_truststore_type,
        truststore_location=own.ssl_truststore_location,
        truststore_password=own.ssl_truststore_password,
        truststore_certificates=own.ssl_truststore_certificates,
        client_auth=own.ssl_client_auth,
        enabled_protocols=own.ssl_enabled_protocols,
        cipher_suites=own.ssl_cipher_suites,
    )


def tls_listeners(settings: Settings) -> list[str]:
    """Names of the listeners with TLS, the HTTP port among them."""
    protocols = settings.listener_security_protocol_map
    names = [each.name for each in settings.listen if speaks_tls(protocol_of(each.name, protocols))]
    if settings.http_security_protocol == SSL:
        names.append(HTTP_LISTENER)
    if settings.peer_listen is not None and settings.peer_security_protocol == SSL:
        names.append(PEER_LISTENER)
    return names


def read_credentials(settings: Settings) -> dict[str, Credentials]:
    """Key material and rules of each listener with TLS.

    Raises:
        Rejected: one cannot be used; the message names the listener.
    """
    return {name: _read_one(settings, name) for name in tls_listeners(settings)}


def _read_one(settings: Settings, name: str) -> Credentials:
    options = tls_options(settings, name)
    if name == PEER_LISTENER:
        options = msgspec.structs.replace(options, client_auth=REQUIRED)
    try:
        found = Credentials(options, read_material(options), settings.for_listener(name).ssl_principal_mapping_rules)
        found.server()
        own_certificate(found.material.chain)
    except Rejected as error:
        raise Rejected(f"listener {name}: {error.message}") from None
    return found


class BrokerTls:
    """A broker's key material for TLS, as its processes share it.

    Lifecycle: made before the forks; each process has its own copy, and renews it.
    """

    def __init__(self, credentials: Mapping[str, Credentials]) -> None:
        self.credentials = credentials
        """Key material of each listener with TLS, by name, as read at the start."""
        peer = credentials.get(PEER_LISTENER)
        self.peers = None if peer is None else PeerTls(peer)
        """TLS between brokers; None without."""


class TlsWatch:
    """Looks for new key material in the supervisor.

    Lifecycle: made with what was read at the start; ``start`` once the shards run.
    """

    def __init__(self, settings: Settings, credentials: Mapping[str, Credentials], stats: StatsSlab) -> None:
        self._settings = settings
        self.credentials = dict(credentials)
        """What is in use now, by the listener's name."""
        self._ends = stats.gauge("tls_certificate_end")
        self._files = sorted({path for one in credentials.values() for path in one.options.files})
        self._stamp = self._look()
        self._controls: list[ControlEnd] = []
        self._renew_http: Callable[[ServerTls], None] = lambda _: None
        self._peers: PeerTls | None = None
        self._reactor: Reactor | None = None
        self._show()

    def start(
        self,
        reactor: Reactor,
        controls: list[ControlEnd],
        renew_http: Callable[[ServerTls], None],
        peers: PeerTls | None,
    ) -> None:
        """Look every ten seconds from now on."""
        self._controls = controls
        self._renew_http = renew_http
        self._peers = peers
        self._reactor = reactor
        if self._files:
            reactor.call_later(LOOK_US, self._again)

    def reload(self) -> list[str]:
        """Read everything again, changed or not, and return the names of the listeners with new material.

        Raises:
            Rejected: something cannot be used; nothing has changed.
        """
        self._stamp = self._look()
        found = read_credentials(self._settings)
        changed = [name for name, one in found.items() if one != self.credentials[name]]
        if not changed:
            return []
        self.credentials = found
        message = msgspec.msgpack.encode(found)
        for control in self._controls:
            control.ask(NEW_CREDENTIALS, message, _answered, _TIMEOUT_US)
        if HTTP_LISTENER in changed:
            self._renew_http(found[HTTP_LISTENER].server())
        if self._peers is not None and PEER_LISTENER in changed:
            self._peers.renew(found[PEER_LISTENER])
        for name in changed:
            log.info("listener %s has new TLS key material, its certificate ends %s", name, _date(self.facts(name)))
        log_expiry({name: found[name] for name in changed})
        self._show()
        return changed

    def try_reload(self) -> None:
        """As ``reload``; what is wrong goes to the log."""
        try:
            self.reload()
        except Rejected as error:
            log.error("the new TLS key material is not used, what was read before stays: %s", error.message)

    def facts(self, name: str) -> CertificateFacts:
        """Subject and end of a listener's certificate."""
        return own_certificate(self.credentials[name].material.chain)

    def describe(self) -> dict[str, Any]:
        """For HTTP: each listener's certificate."""
        found = {name: self.facts(name) for name in self.credentials}
        return {
            "certificates": [
                {"listener": name, "subject": one.subject, "ends": _date(one), "ends_s": one.not_after_s}
                for name, one in found.items()
            ]
        }

    def _again(self) -> None:
        assert self._reactor is not None
        if self._look() != self._stamp:
            self.try_reload()
        self._show()
        self._reactor.call_later(LOOK_US, self._again)

    def _look(self) -> Stamp:
        return tuple(map(_stamp, self._files))

    def _show(self) -> None:
        if not self.credentials:
            return
        self._ends.set(min(self.facts(name).not_after_s for name in self.credentials))


def log_expiry(credentials: Mapping[str, Credentials]) -> None:
    """Warn of certificates that have ended or soon will."""
    for name, one in credentials.items():
        facts = own_certificate(one.material.chain)
        left_s = facts.not_after_s - time.time()
        if left_s <= 0:
            log.error("the certificate of listener %s ended %s: clients refuse it", name, _date(facts))
        elif left_s < 14 * _DAY_S:
            log.warning("the certificate of listener %s ends %s", name, _date(facts))


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_ino, found.st_mtime_ns)


def _date(facts: CertificateFacts) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(facts.not_after_s))


def _answered(answer: object) -> None:
    if isinstance(answer, Exception):
        log.error("a shard did not take new TLS key material: %s", answer)
