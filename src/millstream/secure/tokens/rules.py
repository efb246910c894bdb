"""What a broker expects of a JSON web token: Kafka's ``sasl.oauthbearer.*`` settings as plain data."""

import msgspec

from millstream.config.properties.tokens import ALGORITHMS


class TokenRules(msgspec.Struct, frozen=True):
    """Immutable. Has no secret: it travels in the arguments of the guard's process."""

    url: str
    """Where the public keys are: ``https:`` or ``file:``. Empty: where the document of the OpenID provider, which is
    the issuer, says.
    """

    truststore: str = ""
    """PEM file with the authorities of the https server; empty for those of the system."""

    refresh_ms: int = 3_600_000
    retry_ms: int = 100
    retry_max_ms: int = 10_000
    issuer: str = ""
    audiences: tuple[str, ...] = ()
    """The token names at least one."""

    skew_s: int = 30
    """By how much the issuer's clock may be ahead of the broker's. It never prolongs a token."""

    scope_claim: str = "scope"
    subject_claim: str = "sub"
    algorithms: tuple[str, ...] = ALGORITHMS

    groups_claim: str = ""
    groups: tuple[str, ...] = ()
    """For sign-ins: the person has to be in one of these; empty for all."""


class GuardRules(msgspec.Struct, frozen=True):
    """What a guard expects of the tokens of clients, and of people who sign in. None: none are taken."""

    tokens: TokenRules | None = None
    sign_ins: TokenRules | None = None


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """Who a token is about, or why it is refused. The reason is for the broker's log, and has nothing of the token."""

    user: str = ""
    """Empty if it is refused."""

    lifetime_ms: int = 0
    """From the moment of the test to the token's end."""

    reason: str = ""
