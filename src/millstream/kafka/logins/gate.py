"""The gate of one connection on a SASL listener: what it may send, in which order.

::

    VERSIONS ──ApiVersions──► HANDSHAKE ──SaslHandshake──► TOKENS ──last token──► OPEN
        └────────SaslHandshake────────────────┘               ▲                    │
                                                              └───SaslHandshake────┘  (KIP-368: logs in again)

Before the login nothing is decoded but the three APIs above, and no frame is larger than
``sasl.server.max.receive.size``. As in Kafka:

- another API before the handshake, or a second ApiVersions, closes the connection without a word;
- another API between handshake and last token is answered ILLEGAL_SASL_STATE where its response has an error code of
  its own, then the connection is closed;
- after SaslHandshake version 0 each frame is a bare token, and so is each answer;
- SaslHandshake within a second of the last login, and SaslAuthenticate after a login, are answered ILLEGAL_SASL_STATE,
  and the connection stays;
- a session that has outlived its login (``connections.max.reauth.ms``, or its token's end) may log in again, with the
  same mechanism as the same principal; any other request closes the connection;
- on the connection of another broker that acts for a caller (``ON_BEHALF``, only on the peer address, behind TLS), the
  token says who the caller is and where it comes from, nothing is tested, and the session ends with the connection;
- a bearer token that is not taken is answered with ``{"status":"invalid_token"}``, and the client's next message ends
  the login (RFC 7628).

A login that fails is answered after ``connection.failed.authentication.delay.ms``, and the connection is closed. The
client learns no reason; the log has one, a few lines a minute. Nothing of a token is ever logged.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.core.sasl.bearer import bearer_login
from millstream.core.sasl.plain import plain_login
from millstream.core.sasl.scram import LoginRefused, ScramExchange
from millstream.kafka.served import API_VERSIONS_KEY
from millstream.model.error_code import ErrorCode
from millstream.net.connection import Connection, Exchange
from millstream.secure.tokens.rules import Verdict
from millstream.wire.apis import API_VERSIONS, APIS
from millstream.wire.bearer import OAUTHBEARER, REFUSAL
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from millstream.wire.messages.sasl_handshake import SaslHandshakeResponse
from millstream.wire.sasl import ON_BEHALF, PLAIN, SCRAM_BY_NAME, MalformedToken, read_behalf

if TYPE_CHECKING:
    from millstream.kafka.context import RequestContext
    from millstream.kafka.logins.logins import Logins

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
AGAIN_US: Final = 1_000_000
"""Shortest time between two logins of a connection."""
_FIRST_BARE: Final = 1
"""First version of SaslHandshake after which tokens come in SaslAuthenticate."""

Answer = Callable[[bytes, int], None]
"""Sends a token, with the time in ms that the session holds: 0 for always, and before the last token."""


class State(IntEnum):
    """Where a connection stands."""

    VERSIONS = 0
    HANDSHAKE = 1
    TOKENS = 2
    OPEN = 3
    INTERRUPTED = 4
    FAILED = 5


class Gate:
    """The gate of one connection. Lifecycle: made with the connection, as long as it. Shard: the connection's.

    Invariant: ``client.principal`` is who logged in last; before the first login nothing but this file sees it.
    """

    __slots__ = (
        "_bare",
        "_complaint",
        "_connection",
        "_exchange",
        "_logins",
        "_mechanism",
        "_mechanisms",
        "_since_us",
        "expires_us",
        "state",
    )

    def __init__(self, connection: Connection, logins: "Logins", mechanisms: tuple[str, ...]) -> None:
        """``mechanisms`` are those of the connection's listener."""
        self._connection = connection
        self._logins = logins
        self._mechanisms = mechanisms
        self._mechanism = ""
        self._exchange: ScramExchange | None = None
        self._complaint = ""  # why the client's bearer token is not taken; the client knows it
        self._bare = False
        self._since_us = 0  # when the last login was complete; 0 before the first
        self.expires_us = 0
        """When the session ends; 0 for never."""
        self.state = State.VERSIONS

    # What may come

    @property
    def is_open(self) -> bool:
        """Whether a user is logged in."""
        return self.state is State.OPEN

    @property
    def takes_bare(self) -> bool:
        """Whether the next frame is a bare token, which may be shorter than a request's header."""
        return self._bare and self.state is State.TOKENS

    @property
    def is_interrupted(self) -> bool:
        """Whether another request came while tokens were due."""
        return self.state is State.INTERRUPTED

    def admits(self, frame: memoryview) -> bool:
        """Whether the dispatcher may handle the frame. If not, it was handled here, or the connection is closed."""
        if self.state is State.OPEN and not self.expires_us:
            return frame[1] != SASL_HANDSHAKE or self._admits_open(_key(frame))
        if self._bare and self.state is State.TOKENS:
            self._bare_token(bytes(frame))
            return False
        key = _key(frame)
        match self.state:
            case State.OPEN:
                return self._admits_open(key)
            case State.TOKENS if key == SASL_AUTHENTICATE:
                return True
            case State.TOKENS:
                self.state = State.INTERRUPTED
                return False
            case State.VERSIONS if key == API_VERSIONS_KEY:
                low, high = API_VERSIONS[API_VERSIONS_KEY]
                if low <= int.from_bytes(frame[2:4], "big", signed=True) <= high:
                    self.state = State.HANDSHAKE
                return True
            case State.VERSIONS | State.HANDSHAKE if key == SASL_HANDSHAKE:
                return True
            case _:
                self._connection.close()
                return False

    def _admits_open(self, key: int) -> bool:
        now_us = self._logins.now_us()
        if key == SASL_HANDSHAKE and now_us - self._since_us >= AGAIN_US:
            self.state = State.HANDSHAKE
        elif self.expires_us and now_us >= self.expires_us:
            self._connection.close()
            return False
        return True

    def end_interrupted(self, context: "RequestContext") -> None:
        """Answer the request that came while tokens were due, and close the connection."""
        response = APIS[context.api_key].response
        if "error_code" in response.__struct_fields__:
            context.respond(msgspec.structs.replace(response(), error_code=ErrorCode.ILLEGAL_SASL_STATE))
        else:
            context.respond_nothing()
        self._end()

    # SaslHandshake

    def handshake(self, context: "RequestContext", mechanism: str) -> None:
        """Choose the mechanism, and expect tokens."""
        if self.state not in (State.VERSIONS, State.HANDSHAKE):
            context.respond(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
            return
        offered = list(self._mechanisms)
        if mechanism not in self._mechanisms or (self._mechanism and mechanism != self._mechanism):
            refused = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
            self._fail(context, "it asked for a SASL mechanism that it cannot have", lambda: context.respond(refused))
            return
        self.state = State.TOKENS
        self._mechanism = mechanism
        self._bare = context.api_version < _FIRST_BARE
        self._exchange = None
        self._complaint = ""
        scram = SCRAM_BY_NAME.get(mechanism)
        if scram is not None:
            self._exchange = ScramExchange(scram, self._logins.finder(scram), self._logins.nonce())
        self._logins.began(self._connection)
        context.respond(SaslHandshakeResponse(mechanisms=offered))

    # Tokens

    def authenticate(self, context: "RequestContext", token: bytes) -> None:
        """Take one token that came in SaslAuthenticate."""
        if self.state is not State.TOKENS:
            context.respond(SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_TOO_LATE))
            return

        def answer(challenge: bytes, lifetime_ms: int) -> None:
            context.respond(SaslAuthenticateResponse(auth_bytes=challenge, session_lifetime_ms=lifetime_ms))

        def refused() -> None:
            message = f"Authentication failed during {_kind(self._since_us)} due to invalid credentials with SASL "
            message += f"mechanism {self._mechanism}"
            if self._complaint:
                message = REFUSAL.decode()
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            context.respond(SaslAuthenticateResponse(error_code=code, error_message=message))

        self._take(context, token, answer, refused)

    def _bare_token(self, token: bytes) -> None:
        exchange = self._connection.exchange()

        def answer(challenge: bytes, _: int) -> None:
            exchange.complete((len(challenge).to_bytes(4, "big") + challenge,), 4 + len(challenge))

        self._take(exchange, token, answer, lambda: exchange.complete(None, 0))

    def _take(self, exchange: Exchange, token: bytes, answer: Answer, refused: Callable[[], None]) -> None:
        try:
            if self._mechanism == ON_BEHALF:
                self._act_for(token, answer)
                return
            if self._exchange is None:
                self._ask_guard(exchange, token, answer, refused)
                return
            challenge = self._exchange.step(token)
        except LoginRefused as error:
            self._fail(exchange, error.message, refused)
            return
        if self._exchange.done:
            self._logged_in(Verdict(self._exchange.user), challenge, exchange, answer, refused)
        else:
            answer(challenge, 0)

    def _act_for(self, token: bytes, answer: Answer) -> None:
        """A broker has checked who its caller is."""
        try:
            behalf = read_behalf(token)
        except MalformedToken as error:
            raise LoginRefused(f"a malformed token of a broker: {error}") from None
        if self._since_us:
            raise LoginRefused("a broker acts for one caller on a connection")
        self.state = State.OPEN
        self._since_us = self._logins.now_us()
        client = self._connection.client
        client.principal, client.host = f"User:{behalf.user}", behalf.host
        self._logins.succeeded(self._connection, 0)
        answer(b"", 0)

    def _ask_guard(self, exchange: Exchange, token: bytes, answer: Answer, refused: Callable[[], None]) -> None:
        """Have a password or a bearer token tested by the guard."""
        if self._complaint:
            raise LoginRefused(self._complaint)
        acting_as = ""

        def tested(verdict: Verdict) -> None:
            if self._connection.closed:
                return
            if not verdict.user and self._mechanism == OAUTHBEARER:
                self._complaint = verdict.reason
                self._logins.failed(self._connection, verdict.reason)
                answer(REFUSAL, 0)
            elif acting_as not in ("", verdict.user):
                self._fail(exchange, f"user {verdict.user!r} wants to act as another one", refused)
            elif verdict.user:
                self._logged_in(verdict, b"", exchange, answer, refused)
            else:
                self._fail(exchange, verdict.reason, refused)

        if self._mechanism == OAUTHBEARER:
            bearer = bearer_login(token)
            acting_as = bearer.authorization_id
            exchange.hold()
            self._logins.test_token(bearer.token, tested)
        else:
            assert self._mechanism == PLAIN
            login = plain_login(token)
            exchange.hold()
            self._logins.test_password(login.user, login.password, tested)

    def _logged_in(
        self, verdict: Verdict, last: bytes, exchange: Exchange, answer: Answer, refused: Callable[[], None]
    ) -> None:
        user = verdict.user
        principal = f"User:{user}"
        if self._since_us and principal != self._connection.client.principal:
            self._fail(exchange, f"{self._connection.client.principal} may not become {principal}", refused)
            return
        self.state = State.OPEN
        self._exchange = None
        self._since_us = self._logins.now_us()
        self._connection.client.principal = principal
        lifetime_ms = self._logins.succeeded(self._connection, verdict.lifetime_ms)
        self.expires_us = self._since_us + lifetime_ms * 1000 if lifetime_ms else 0
        answer(last, lifetime_ms)

    # Failure

    def _fail(self, exchange: Exchange, why: str, refused: Callable[[], None]) -> None:
        """Refuse the login: later, so that guessing takes its time, and without a buffer until then."""
        self.state = State.FAILED
        self._exchange = None
        exchange.hold()

        def end() -> None:
            if not self._connection.closed:
                refused()
                self._end()

        if not self._complaint:
            self._logins.failed(self._connection, why)
        self._logins.later(end)

    def _end(self) -> None:
        """Send what is answered, and close."""
        self._connection.flush()
        self._connection.close()


def put_gate(connection: Connection, logins: "Logins") -> None:
    """Put a gate before a connection that has just been opened, if its client has to log in."""
    mechanisms = logins.demanded(connection)
    if mechanisms is not None:
        connection.client.gate = Gate(connection, logins, mechanisms)
        logins.began(connection)


_TOO_LATE: Final = "SaslAuthenticate request received after successful authentication"


def _key(frame: memoryview) -> int:
    return int.from_bytes(frame[:2], "big")


def _kind(since_us: int) -> str:
    return "re-authentication" if since_us else "authentication"
