"""What a broker expects of a JSON web token: Kafka's ``sasl.oauthbearer.*`` settings as plain data."""

import msgspec

from millstream.config.properties.tokens import ALGORITHMS


class TokenRules(msgspec.Struct, frozen=True):
    """Immutable. Has no secret: it travels in the arguments of the guard's process."""

    url: str
    """Where the public keys are: ``https:`` or ``file:``."""

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


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """Who a token is about, or why it is refused. The reason is for the broker's log, and has nothing of the token."""

    user: str = ""
    """Empty if it is refused."""

    lifetime_ms: int = 0
    """From the moment of the test to the token's end."""

    reason: str = ""
