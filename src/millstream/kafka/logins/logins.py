"""What the logins of one shard share: users, limits, deadlines.

A connection on a SASL listener has ``LOGIN_US`` from its first byte to its last token; between a repeated handshake and
its last token, too. At most ``LOGINS_MAX`` connections of a shard are not logged in; a further one takes the place of
the one that has been at it for longest, because a login takes milliseconds. What they may send is small
(``kafka.logins.gate``), so they cannot fill the memory for requests.

Users and their verifiers come from the metadata of the shard. A user that does not exist has a decoy (``core.sasl``).
"""

import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from millstream.config.listeners import PEER_LISTENER, SSL, demands_login
from millstream.core.controller.users import DECOYS
from millstream.core.sasl.scram import FindVerifier, decoy
from millstream.model.principal import ANONYMOUS, SOCKET_FILE
from millstream.net.connection import Connection
from millstream.shard.context import Shard
from millstream.shard.reactor import Timer
from millstream.telemetry.log import RateLimit, log
from millstream.wire.sasl import ON_BEHALF, SCRAM_BY_NUMBER, SCRAM_SHA_256, ScramMechanism, Verifier

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache
    from millstream.config.settings import Settings
    from millstream.kafka.audit import Audit
    from millstream.kafka.logins.guard_link import Done, GuardLink

LOGINS_MAX: Final = 1_000
LOGIN_US: Final = 30_000_000
_SWEEP_US: Final = 1_000_000
_NONCE_BYTES: Final = 24


class Logins:
    """The logins of one shard. Lifecycle: made with the shard's edge. Shard: its own."""

    def __init__(
        self, shard: Shard, settings: "Settings", metadata: "MetadataCache", guard: "GuardLink | None"
    ) -> None:
        """``guard`` tests passwords and tokens; None where nothing takes them."""
        self._reactor = shard.reactor
        self._settings = settings
        self._metadata = metadata
        self._guard = guard
        self._mechanisms = mechanisms_of(settings)
        self._unnamed = secrets.token_bytes(32)  # makes decoys until the cluster has a secret of its own
        self._waiting: dict[Connection, int] = {}  # until when (µs); the oldest first
        self._sweep: Timer | None = None
        self._quiet = RateLimit(per_minute=6)
        self._counts = {each: shard.stats.counter("kafka_logins", outcome=each) for each in ("succeeded", "failed")}
        self.audit: Audit | None = None
        """Who records logins; None where nothing is recorded."""
        self.now_us = shard.reactor.now_us

    def demanded(self, connection: Connection) -> tuple[str, ...] | None:
        """The mechanisms of which a connection that has just been opened must use one; None if it need not log in. On
        the peer address a client of a broker's own need not, and one that acts for a caller has to say for whom.
        """
        mechanisms = self._mechanisms.get(connection.client.listener)
        if mechanisms is not None and connection.client.principal != SOCKET_FILE:
            return mechanisms
        if self.audit is not None and connection.client.principal != ANONYMOUS:
            self.audit.login(connection.client.principal, connection.client.host, connection.client.listener)
        return None

    # What a gate says

    def began(self, connection: Connection) -> None:
        """A login has started: it has ``LOGIN_US``."""
        self._waiting.pop(connection, None)
        if len(self._waiting) >= LOGINS_MAX:
            self._drop_gone()
            if len(self._waiting) >= LOGINS_MAX:
                self._close(next(iter(self._waiting)), f"{LOGINS_MAX} connections are not logged in")
        self._waiting[connection] = self.now_us() + LOGIN_US
        connection.frame_bytes_max = self._settings.sasl_server_max_receive_size
        if self._sweep is None:
            self._sweep = self._reactor.call_later(_SWEEP_US, self._look)

    def succeeded(self, connection: Connection, token_ms: int) -> int:
        """A login is complete. ``token_ms`` is how long its token holds, 0 for a login without one.

        Returns how long the session holds, in ms: as long as the token and ``connections.max.reauth.ms``; 0 for always.
        """
        self._waiting.pop(connection, None)
        self._counts["succeeded"].inc()
        connection.frame_bytes_max = connection.intake.frame_bytes_max
        if self.audit is not None:
            self.audit.login(connection.client.principal, connection.client.host, connection.client.listener)
        limits = [limit for limit in (token_ms, self._settings.connections_max_reauth_ms) if limit]
        return min(limits, default=0)

    def failed(self, connection: Connection, why: str) -> None:
        """A login is refused: count it, and say why."""
        self._counts["failed"].inc()
        if self.audit is not None:
            self.audit.login("", connection.client.host, connection.client.listener, why)
        if self._quiet.allows():
            who, more = connection.client, self._quiet.left_out()
            log.warning("a login from %s on listener %s failed: %s%s", who, connection.client.listener, why, more)

    def succeeded_over_http(self, principal: str, host: str) -> None:
        """Count a login over HTTP; one that is kept for later requests has its ``principal`` recorded."""
        self._counts["succeeded"].inc()
        if principal and self.audit is not None:
            self.audit.login(principal, host, "HTTP")

    def failed_over_http(self, host: str, why: str) -> None:
        """A login over HTTP is refused: count it, and say why."""
        self._counts["failed"].inc()
        if self.audit is not None:
            self.audit.login("", host, "HTTP", why)
        if self._quiet.allows():
            log.warning("a login from %s over HTTP failed: %s%s", host, why, self._quiet.left_out())

    def later(self, end: Callable[[], None]) -> None:
        """Call ``end`` after the delay of a refused login."""
        self._reactor.call_later(self._settings.connection_failed_authentication_delay_ms * 1000, end)

    def nonce(self) -> str:
        """A server's nonce."""
        return secrets.token_urlsafe(_NONCE_BYTES)

    def finder(self, mechanism: ScramMechanism) -> FindVerifier:
        """The function that finds verifiers of users."""
        return lambda user: self._verifier(user, mechanism)

    def test_token(self, token: str, done: "Done", nonce: str = "") -> None:
        """Who the token is about, or who signed in with this ``nonce``: tested by the guard."""
        assert self._guard is not None
        self._guard.test_token(token, done, nonce)

    def test_password(self, user: str, password: str, done: "Done") -> None:
        """Whether it is the user's password: one computation by the guard, whether or not there is such a user."""
        assert self._guard is not None
        users = self._metadata.state.security.users
        having = [number for number in SCRAM_BY_NUMBER if (user, number) in users]
        mechanism = SCRAM_BY_NUMBER[having[0]] if having else self._usual_mechanism(user)
        self._guard.test_password(user, password, mechanism, self._verifier(user, mechanism), done)

    def _verifier(self, user: str, mechanism: ScramMechanism) -> Verifier:
        security = self._metadata.state.security
        found = security.users.get((user, mechanism.number))
        made = decoy(mechanism, self._secret(), user, sorted(security.iterations.get(mechanism.number, ())))
        return made if found is None else found

    def _usual_mechanism(self, user: str) -> ScramMechanism:
        """A mechanism that real users have, so that a decoy takes as long to test as they do."""
        iterations = self._metadata.state.security.iterations
        present = [SCRAM_BY_NUMBER[number] for number, counts in iterations.items() if counts]
        salt = decoy(SCRAM_SHA_256, self._secret(), user, ()).salt
        return present[salt[0] % len(present)] if present else SCRAM_SHA_256

    def _secret(self) -> bytes:
        return self._metadata.state.security.secrets.get(DECOYS, self._unnamed)

    # Deadlines

    def _look(self) -> None:
        self._sweep = None
        self._drop_gone()
        now_us = self.now_us()
        while self._waiting:
            connection, until_us = next(iter(self._waiting.items()))
            if until_us > now_us:
                break
            self._close(connection, f"no login within {LOGIN_US // 1_000_000} s")
        if self._waiting:
            self._sweep = self._reactor.call_later(_SWEEP_US, self._look)

    def _drop_gone(self) -> None:
        for connection in [each for each in self._waiting if each.closed]:
            del self._waiting[connection]

    def _close(self, connection: Connection, why: str) -> None:
        del self._waiting[connection]
        self._counts["failed"].inc()
        if self._quiet.allows():
            who, more = connection.client, self._quiet.left_out()
            log.warning("closed the connection of %s: %s%s", who, why, more)
        connection.close()


def mechanisms_of(settings: "Settings") -> Mapping[str, tuple[str, ...]]:
    """The SASL mechanisms of each listener that demands a login, by its name, and of the peer address behind TLS."""
    protocols = dict(settings.listener_security_protocol_map)
    found = {
        each.name: settings.for_listener(each.name).sasl_enabled_mechanisms
        for each in settings.listen
        if demands_login(protocols[each.name])
    }
    if settings.peer_security_protocol == SSL:
        found[PEER_LISTENER] = (ON_BEHALF,)
    return found
