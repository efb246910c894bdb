"""The guard: one process a broker that tests passwords and tokens, because that takes milliseconds of CPU.

The supervisor starts it if a listener takes passwords or tokens (SASL mechanisms PLAIN and OAUTHBEARER), else when the
first caller over HTTP logs in. It has one socket pair with each shard (``kafka.logins.guard_link``), no data, and no
state but the public keys of tokens. A guard that dies is started again after ``PAUSE_US``, on the same sockets; logins
wait for it, and nothing else notices. Passwords and tokens travel over these sockets only: they are in no argument, no
environment and no file.
"""

import importlib.util
import os
import socket
import subprocess
import sys
from typing import Final

import msgspec

from millstream.config.relations import takes_tokens
from millstream.config.settings import Settings
from millstream.errors import Rejected
from millstream.kafka.access import controls_access
from millstream.kafka.logins.logins import mechanisms_of
from millstream.secure.tokens.rules import GuardRules, TokenRules
from millstream.secure.tokens.sign_in import provider_of, rules_of
from millstream.shard.reactor import Reactor
from millstream.telemetry.log import log
from millstream.wire.bearer import OAUTHBEARER
from millstream.wire.sasl import PLAIN

PAUSE_US: Final = 500_000
_STOP_S: Final = 2.0


class GuardChannels:
    """Both ends of the sockets between the guard and the shards. Made by the supervisor before it forks."""

    def __init__(self, shards: int, rules: GuardRules) -> None:
        self.rules = rules
        self._pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(shards)]

    def keep_shard_end(self, shard: int) -> socket.socket:
        """The shard's end; called there after the fork. All others are closed."""
        mine = self._pairs[shard][0]
        for pair in self._pairs:
            for end in pair:
                if end is not mine:
                    end.close()
        return mine

    def keep_guard_ends(self) -> list[int]:
        """The descriptors of the guard's ends; called by the supervisor after the forks."""
        for shard_end, _ in self._pairs:
            shard_end.close()
        return [guard_end.fileno() for _, guard_end in self._pairs]


def guard_channels(settings: Settings) -> GuardChannels | None:
    """Sockets for a guard; None where access is not controlled, so that nothing takes passwords or tokens.

    Raises:
        Rejected: the packages that test tokens are missing, or people are to sign in where no access is controlled.
    """
    if controls_access(settings):
        return GuardChannels(settings.shards, GuardRules(token_rules(settings), sign_in_rules(settings)))
    if settings.console_oidc_issuer_url:
        raise Rejected(
            "console.oidc.issuer.url: no visitor signs in to this broker's console, because no listener authenticates "
            "its clients; 'millstream security init' makes one that does"
        )
    return None


class Guard:
    """The guard's process, as the supervisor sees it. Lifecycle: ``start`` after the forks, ``close`` at the end."""

    def __init__(self, reactor: Reactor, channels: GuardChannels) -> None:
        self._rules = channels.rules
        self._reactor = reactor
        self._fds = channels.keep_guard_ends()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def runs(self) -> bool:
        """Whether the process was started. It is started again when it ends."""
        return self._process is not None

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self._closed or (self._process is not None and self._process.poll() is None):
            return
        rules = msgspec.json.encode(self._rules).decode()
        command = [sys.executable, "-m", "millstream.app.guard_main", rules, *map(str, self._fds)]
        process = self._process = subprocess.Popen(command, pass_fds=self._fds, stdin=subprocess.DEVNULL)
        pidfd = os.pidfd_open(process.pid)

        def ended() -> None:
            self._reactor.remove_reader(pidfd)
            os.close(pidfd)
            code = process.wait()
            if not self._closed:
                log.warning("the guard ended with code %d and is started again; logins with passwords wait", code)
                self._reactor.call_later(PAUSE_US, self.start)

        self._reactor.add_reader(pidfd, ended)

    def close(self) -> None:
        """End the process."""
        self._closed = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(_STOP_S)


def listeners_need_guard(settings: Settings) -> bool:
    """Whether a listener takes passwords or tokens."""
    return any({PLAIN, OAUTHBEARER} & {*mechanisms} for mechanisms in mechanisms_of(settings).values())


def token_rules(settings: Settings) -> TokenRules | None:
    """What is expected of tokens; None where none are taken.

    Raises:
        Rejected: the packages that test tokens are missing.
    """
    if not takes_tokens(settings):
        return None
    _need_packages("OAUTHBEARER")
    return _rules(settings)


def _rules(settings: Settings) -> TokenRules:
    return TokenRules(
        url=settings.sasl_oauthbearer_jwks_endpoint_url,
        truststore=settings.sasl_oauthbearer_jwks_endpoint_truststore_location,
        refresh_ms=settings.sasl_oauthbearer_jwks_endpoint_refresh_ms,
        retry_ms=settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
        retry_max_ms=settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        issuer=settings.sasl_oauthbearer_expected_issuer,
        audiences=settings.sasl_oauthbearer_expected_audience,
        skew_s=settings.sasl_oauthbearer_clock_skew_seconds,
        scope_claim=settings.sasl_oauthbearer_scope_claim_name,
        subject_claim=settings.sasl_oauthbearer_sub_claim_name,
        algorithms=settings.sasl_oauthbearer_jwt_algorithms,
    )


def sign_in_rules(settings: Settings) -> TokenRules | None:
    """What is expected of the ID tokens of people; None where no visitor signs in.

    Raises:
        Rejected: the packages that test tokens are missing.
    """
    provider = provider_of(settings)
    if provider is None:
        return None
    _need_packages("console.oidc.issuer.url")
    return rules_of(provider, _rules(settings))


def _need_packages(what: str) -> None:
    if importlib.util.find_spec("joserfc") is None:
        raise Rejected(f"{what} needs the extra 'security': pip install 'millstream[security]'")
