"""Who asks over HTTP, and what that caller may do: shard 0 decides, with the users and rights of Kafka's clients.

::

    thread of a request ──(proof, host, needs)──► supervisor's reactor ──► shard 0 ──► guard (a password, a token)
                        ◄──(principal, allowed)──                               └────► the authorizer

One question a request. A wrong password costs the same as a right one, is answered after
``connection.failed.authentication.delay.ms``, is counted in ``kafka_logins`` and has its reason in the log. The guard's
process is started by the first caller with a password or a token, if no listener needed it before.

A shard that does not answer within ``ShardQueries``' time makes the request fail with 503: no caller passes unchecked.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millstream.admin.callers import Proof, check_needs, unauthorized
from millstream.admin.routing import HttpError, Need
from millstream.model.access import Operation, ResourceType
from millstream.model.principal import ANONYMOUS
from millstream.secure.tokens.rules import Verdict
from millstream.shard.control import ControlEnd

if TYPE_CHECKING:
    from millstream.kafka.access import Access
    from millstream.kafka.logins.logins import Logins

ADMIT: Final = "admit_caller"
ANY_MARK: Final = "?"
_TIMEOUT_US: Final = 20_000_000
"""A token with an unknown key waits for the issuer."""

Ask = Callable[[str, Any, int], Any]
"""Asks shard 0: name, arguments, timeout in µs."""


class _Question(msgspec.Struct, array_like=True):
    user: str
    password: str
    token: str
    principal: str
    nonce: str
    host: str
    needs: list[tuple[Operation, ResourceType, str]]
    mark: str = ""
    """Mark of the principal's credentials at its login: if they have changed since, the proof is wrong.
    ``ANY_MARK`` asks for the mark; empty: marks do not matter.
    """

    admits: bool = False
    """Whether a right that is missing refuses the request, which the audit records."""


class _Answer(msgspec.Struct, array_like=True):
    """``principal`` is empty for a wrong proof; ``allowed`` answers the rights that were asked for."""

    principal: str
    allowed: list[bool] = []
    mark: str = ""
    lifetime_ms: int = 0
    """How long the token is valid; 0: the proof was not valid."""
    reason: str = ""
    """Why a sign-in is refused. Other refusals say nothing: their reason is in the log."""


class LoggedIn(NamedTuple):
    """Whom a login is for. ``mark`` is for ``BrokerCallers.remember``, ``lifetime_ms`` is 0 where nothing bounds it."""

    principal: str
    mark: str
    lifetime_ms: int


class KnownCaller:
    """A caller that was admitted. Belongs to the thread of one request."""

    def __init__(self, ask: Ask, principal: str, host: str) -> None:
        self._ask = ask
        self.principal = principal
        self._host = host

    def allowed(self, needs: Sequence[Need]) -> list[bool]:
        """For each right whether it has it."""
        return _asked(self._ask, Proof(principal=self.principal), self._host, needs).allowed


class BrokerCallers:
    """The callers of one broker. Used by the HTTP threads."""

    def __init__(self, ask: Ask, need_guard: Callable[[], None]) -> None:
        """``need_guard`` starts the guard unless it runs."""
        self._ask = ask
        self._need_guard = need_guard

    def admit(self, proof: Proof, host: str, needs: Sequence[Need]) -> KnownCaller:
        """As ``admin.callers.Callers``."""
        if proof.password or proof.token:
            self._need_guard()
        answer = _asked(self._ask, proof, host, needs, admits=True)
        if not answer.principal:
            raise unauthorized("the login failed")
        if answer.principal == ANONYMOUS and not all(answer.allowed):
            need = needs[answer.allowed.index(False)]
            raise unauthorized(f"a login is needed: {ANONYMOUS} needs {need}")
        check_needs(answer.principal, needs, answer.allowed)
        return KnownCaller(self._ask, answer.principal, host)

    def log_in(self, proof: Proof, host: str) -> LoggedIn | None:
        """A login that is kept, which the audit records; None if the password or the token is wrong.

        Raises:
            HttpError: 403: a sign-in is refused, with the reason.
            MillstreamError: the broker cannot say.
        """
        self._need_guard()
        answer = _asked(self._ask, proof, host, (), mark=ANY_MARK)
        if answer.reason:
            raise HttpError(403, "FORBIDDEN", answer.reason)
        return LoggedIn(answer.principal, answer.mark, answer.lifetime_ms) if answer.principal else None

    def remember(self, principal: str, mark: str, host: str) -> KnownCaller | None:
        """A caller that logged in before; None if its credentials were changed or removed since.

        Raises:
            MillstreamError: the broker cannot say.
        """
        answer = _asked(self._ask, Proof(principal=principal), host, (), mark=mark)
        return KnownCaller(self._ask, principal, host) if answer.principal else None


def _asked(
    ask: Ask, proof: Proof, host: str, needs: Sequence[Need], *, mark: str = "", admits: bool = False
) -> _Answer:
    question = _Question(*proof, host, [(need.operation, need.resource, need.name) for need in needs], mark, admits)
    return msgspec.convert(ask(ADMIT, msgspec.to_builtins(question), _TIMEOUT_US), _Answer)


def serve_callers(control: ControlEnd, logins: "Logins", access: "Access") -> None:
    """Answer ``ADMIT`` on shard 0."""

    def admit(arguments: Any, answer: Callable[[Any], None]) -> None:
        question = msgspec.convert(arguments, _Question)

        def known(principal: str, lifetime_ms: int = 0) -> None:
            mark = access.mark(principal) if question.mark else ""
            if question.mark not in ("", ANY_MARK, mark):
                answer(msgspec.to_builtins(_Answer("")))
                return
            allowed = [access.permits(principal, question.host, *need) for need in question.needs]
            for need, has in zip(question.needs, allowed, strict=True):
                if question.admits and not has and access.audit is not None:
                    error = Need(*need).error.name
                    access.audit.refused(principal, question.host, "HTTP", error, need[2])
            answer(msgspec.to_builtins(_Answer(principal, allowed, mark, lifetime_ms)))

        def tested(verdict: Verdict) -> None:
            if verdict.user:
                principal = f"User:{verdict.user}"
                logins.succeeded_over_http(principal if question.mark == ANY_MARK else "", question.host)
                known(principal, verdict.lifetime_ms)
                return
            logins.failed_over_http(question.host, verdict.reason)
            reason = verdict.reason if question.nonce else ""
            logins.later(lambda: answer(msgspec.to_builtins(_Answer("", reason=reason))))

        if question.token or question.nonce:
            logins.test_token(question.token, tested, question.nonce)
        elif question.password:
            logins.test_password(question.user, question.password, tested)
        else:
            known(question.principal or ANONYMOUS)

    control.serve(ADMIT, admit)
