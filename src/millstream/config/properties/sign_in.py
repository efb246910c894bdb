"""Settings of the console's sign-in at an OpenID provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.config.errors import ConfigError
from millstream.config.forms import Integer, Text
from millstream.config.properties.tokens import IssuerUrl, Names
from millstream.config.property import Property, declared
from millstream.config.urls import file_of, is_issuer_url

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "console.oidc."


def is_provider_url(url: str) -> bool:
    """Whether a page or an endpoint of a provider may be at ``url``."""
    return bool(url) and is_issuer_url(url) and not file_of(url)


class ProviderUrl(IssuerUrl):
    """A URL of a provider, which is no file's; may be empty."""

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and (not value or is_provider_url(value))

    def expected(self) -> str:
        return "https://HOST/PATH without a user, or http:// on this machine"


class Scope(Text):
    """Scopes with blanks, ``openid`` among them: without it no provider sends an ID token."""

    def read_plain(self, text: str) -> str:
        if "openid" not in text.split():
            raise ValueError
        return super().read_plain(text)

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and "openid" in value.split()


class SignInProperties:
    """Where people sign in to the console, and who may."""

    console_oidc_issuer_url = Property(
        "console.oidc.issuer.url",
        ProviderUrl(),
        "",
        doc="The OpenID provider where visitors of the console sign in, by the name in its tokens (`iss`). Its "
        "document is at `/.well-known/openid-configuration` below. No redirect is followed.",
        example="https://id.example.org/realms/data",
    )
    console_oidc_client_id = Property(
        "console.oidc.client.id",
        Text("the console's id at the provider"),
        "",
        doc="The console's id at the provider, which is the audience of its ID tokens (`aud`).",
        example="millstream-console",
    )
    console_oidc_client_secret = Property(
        "console.oidc.client.secret",
        Text("the console's secret at the provider"),
        "",
        doc="The console's secret at the provider. Without one it is a public client, protected by PKCE alone.",
        sensitive=True,
    )
    console_oidc_redirect_uri = Property(
        "console.oidc.redirect.uri",
        ProviderUrl(),
        "",
        doc="Where the provider sends the browser back to: the console's address as browsers see it and "
        "`/oidc/callback`. Needed behind a proxy that speaks TLS for the console.",
        default_doc="by the address that the browser uses",
        example="https://kafka.example.org/console/oidc/callback",
    )
    console_oidc_scope = Property(
        "console.oidc.scope",
        Scope("scopes with blanks, openid among them"),
        "openid profile",
        doc="What the provider is asked for. `openid` has to be among it.",
    )
    console_oidc_jwks_endpoint_url = Property(
        "console.oidc.jwks.endpoint.url",
        IssuerUrl(),
        "",
        doc="Where the public keys of the provider's tokens are, as a JSON web key set, https or a file.",
        default_doc="where the provider's document says",
        example="file:///etc/millstream/provider-keys.json",
    )
    console_oidc_truststore_location = Property(
        "console.oidc.truststore.location",
        Text("a PEM file with certificates"),
        "",
        doc="PEM file with the authorities that may sign the provider's certificate.",
        default_doc="the authorities of the system",
        example="/etc/millstream/provider-ca.pem",
    )
    console_oidc_groups_claim_name = Property(
        "console.oidc.groups.claim.name",
        Text("the name of a claim", required=True),
        "groups",
        doc="The claim with the groups of a visitor: a list of texts, or text with blanks.",
    )
    console_oidc_allowed_groups = Property(
        "console.oidc.allowed.groups",
        Names("names of groups with commas, such as platform,on-call"),
        (),
        doc="Only members of one of these groups may sign in. Rights on topics are the principal's, as ever.",
        default_doc="every user of the provider",
        example="platform,on-call",
    )
    console_oidc_session_max_ms = Property(
        "console.oidc.session.max.ms",
        Integer(60_000, 28_800_000, unit="ms"),
        3_600_000,
        doc="How long a sign-in holds. A visitor whom the provider locks out keeps an open console until then; "
        "another one signs in again with one click.",
    )


def read_sign_in(properties: Mapping[str, str]) -> SignInProperties:
    """The settings among the properties of a program of ours.

    Raises:
        ConfigError: a value is not valid, or a name below ``console.oidc.`` is unknown.
    """
    known = declared(SignInProperties)
    for name in properties:
        if name.startswith(_PREFIX) and name not in known:
            raise ConfigError(name, f"is not known; there are {', '.join(known)}")
    found = SignInProperties()
    for name, each in known.items():
        vars(found)[each.field] = each.read(properties[name]) if name in properties else each.default
    return found
