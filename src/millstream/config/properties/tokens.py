"""Settings of logins with JSON web tokens (SASL OAUTHBEARER, and Bearer over HTTP)."""

from __future__ import annotations

from typing import Final

from millstream.config.forms import INT64_MAX, Choice, Choices, Form, Integer, Text, Words
from millstream.config.property import Property
from millstream.config.urls import EXPECTED, is_issuer_url

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures by a private key. ``none`` and HMAC, whose key the broker would share, are not among them."""

_JAVA: Final = "org.apache.kafka.common.security.oauthbearer."
_VALIDATOR: Final = f"{_JAVA}BrokerJwtValidator"
_HANDLER: Final = f"{_JAVA}OAuthBearerValidatorCallbackHandler"


class IssuerUrl(Form[str]):
    """A URL that keys come from; may be empty."""

    def read_plain(self, text: str) -> str:
        url = text.strip()
        if not self.accepts(url):
            raise ValueError
        return url

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and (not value or is_issuer_url(value))

    def write(self, value: str) -> str | None:
        return value or None

    def expected(self) -> str:
        return EXPECTED


class Names(Words):
    """Names with commas; may be empty. ``what`` says which."""

    def __init__(self, what: str) -> None:
        self.what = what

    def accepts_words(self, words: tuple[str, ...]) -> bool:
        return all(words)

    def expected(self) -> str:
        return self.what


class TokenProperties:
    """Which tokens are taken."""

    sasl_oauthbearer_jwks_endpoint_url = Property(
        "sasl.oauthbearer.jwks.endpoint.url",
        IssuerUrl(),
        "",
        doc="Where the issuer publishes the public keys of its tokens, as a JSON web key set. A redirect is not "
        "followed, and at most 1 MiB is read. `OAUTHBEARER` needs it.",
        example="https://id.example.org/.well-known/jwks.json",
    )
    sasl_oauthbearer_jwks_endpoint_truststore_location = Property(
        "sasl.oauthbearer.jwks.endpoint.truststore.location",
        Text("a PEM file with certificates"),
        "",
        doc="PEM file with the authorities that may sign the certificate of the keys' server.",
        default_doc="the authorities of the system",
        example="/etc/millstream/issuer-ca.pem",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms = Property(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        Integer(1_000, INT64_MAX, unit="ms"),
        3_600_000,
        doc="How often the keys are read again; from a file at least every ten seconds. The last good keys stay until "
        "others are read. A token with an unknown key asks for them at once, once a minute at most.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms = Property(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        Integer(10, 3_600_000, unit="ms"),
        100,
        doc="How long to wait after the first attempt to read the keys that failed; doubled after each further one.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms = Property(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        Integer(10, 3_600_000, unit="ms"),
        10_000,
        doc="Longest wait between two attempts to read the keys.",
    )
    sasl_oauthbearer_expected_issuer = Property(
        "sasl.oauthbearer.expected.issuer",
        Text("the issuer's name"),
        "",
        doc="A token's claim `iss` is exactly this. `OAUTHBEARER` needs it.",
        example="https://id.example.org/",
    )
    sasl_oauthbearer_expected_audience = Property(
        "sasl.oauthbearer.expected.audience",
        Names("names with commas, such as kafka,https://broker.example.org"),
        (),
        doc="A token's claim `aud` names at least one of these. `OAUTHBEARER` needs it.",
        example="kafka",
    )
    sasl_oauthbearer_clock_skew_seconds = Property(
        "sasl.oauthbearer.clock.skew.seconds",
        Integer(0, 3_600, unit="s"),
        30,
        doc="How far the issuer's clock may be ahead (`nbf`). It never prolongs a token (`exp`).",
    )
    sasl_oauthbearer_scope_claim_name = Property(
        "sasl.oauthbearer.scope.claim.name",
        Text("the name of a claim", required=True),
        "scope",
        doc="The claim with a token's scopes: text or a list of texts, if it is there. It gives no rights.",
    )
    sasl_oauthbearer_sub_claim_name = Property(
        "sasl.oauthbearer.sub.claim.name",
        Text("the name of a claim", required=True),
        "sub",
        doc="The claim whose value becomes the principal: `User:` and the value.",
        example="azp",
    )
    sasl_oauthbearer_jwt_algorithms = Property(
        "sasl.oauthbearer.jwt.algorithms",
        Choices(*ALGORITHMS),
        ALGORITHMS,
        doc="Algorithms that tokens may be signed with. `none` and those with a shared key (HS256) are never taken.",
    )
    sasl_oauthbearer_jwt_validator_class = Property(
        "sasl.oauthbearer.jwt.validator.class",
        Choice("", _VALIDATOR, f"{_JAVA}DefaultJwtValidator"),
        "",
        doc="No effect: tokens are tested as by Kafka's own class. Others are refused.",
        effect=False,
    )
    sasl_server_callback_handler_class = Property(
        "sasl.server.callback.handler.class",
        Choice("", _HANDLER, f"{_JAVA}secured.OAuthBearerValidatorCallbackHandler"),
        "",
        doc="No effect: tokens are tested as by Kafka's own class. Others are refused.",
        effect=False,
        per_listener=True,
    )
