"""Sign-in of people at an OpenID provider: the authorization code flow with PKCE, as far as it needs the provider.

::

    Discovery.endpoints ──► address: where the browser goes      (state, nonce, challenge)
                        └─► exchange: a code for two tokens      (code, verifier)     ──► verify.verify_sign_in

Sources: OpenID Connect Core 1.0 §3.1, Discovery 1.0 §4, RFC 7636 (PKCE, S256 only), RFC 9700. The caller keeps state,
nonce and verifier for the browser that starts a sign-in, and has the ID token tested before it believes any claim.

Every request is ``fetch.fetch``: bounded in size and in time, without a redirect, over https or on this machine. That
is why no library speaks for us here: Authlib's clients follow redirects and read without a limit. The document of the
provider may name endpoints of these kinds only. It is kept for ``KEPT_S``; after a failure nothing is asked for
``RETRY_S``, so visitors cannot make a provider that is down cost ten seconds each. A code is used once: an exchange
whose answer is lost is not repeated.
"""

import base64
import hashlib
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Final

import msgspec

from millstream.config.properties.sign_in import SignInProperties, is_provider_url
from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.secure.tokens.fetch import fetch
from millstream.secure.tokens.rules import TokenRules

KEPT_S: Final = 3600.0
RETRY_S: Final = 5.0
DOCUMENT_BYTES_MAX: Final = 256 << 10
TOKEN_CHARACTERS_MAX: Final = 64_000
"""Of an ID token: it travels to the guard in one message."""
_WELL_KNOWN: Final = "/.well-known/openid-configuration"


class Provider(msgspec.Struct, frozen=True):
    """An OpenID provider, and this console as one of its clients. Its repr is without the secret."""

    issuer: str
    client_id: str
    client_secret: str = ""
    """Empty for a public client, which PKCE alone protects."""
    scope: str = "openid profile"
    redirect_uri: str = ""
    """Empty: by the address that the browser uses."""
    truststore: str = ""
    """PEM file with the authorities of the provider; empty for those of the system."""
    jwks_url: str = ""
    """``https:`` or ``file:``; empty: the one that the provider names."""
    groups_claim: str = "groups"
    groups: tuple[str, ...] = ()
    """Whose members may sign in; empty for every user of the provider."""
    session_s: float = 3600.0

    def __repr__(self) -> str:
        return f"Provider({self.issuer!r}, {self.client_id!r})"


def provider_of(settings: SignInProperties) -> Provider | None:
    """The provider that settings name; None where no visitor signs in."""
    if not settings.console_oidc_issuer_url:
        return None
    return Provider(
        settings.console_oidc_issuer_url,
        settings.console_oidc_client_id,
        settings.console_oidc_client_secret,
        settings.console_oidc_scope,
        settings.console_oidc_redirect_uri,
        settings.console_oidc_truststore_location,
        settings.console_oidc_jwks_endpoint_url,
        settings.console_oidc_groups_claim_name,
        settings.console_oidc_allowed_groups,
        settings.console_oidc_session_max_ms / 1000,
    )


def rules_of(provider: Provider, rules: TokenRules) -> TokenRules:
    """What is expected of the provider's ID tokens; the rest is as ``rules`` says."""
    return msgspec.structs.replace(
        rules,
        url=provider.jwks_url,
        truststore=provider.truststore,
        issuer=provider.issuer,
        audiences=(provider.client_id,),
        groups_claim=provider.groups_claim,
        groups=provider.groups,
    )


class Endpoints(msgspec.Struct, frozen=True):
    """What a provider says of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class Tokens(msgspec.Struct, frozen=True):
    """What a code gives. ``id_token`` is for the console, ``access_token`` for others."""

    id_token: str
    access_token: str = ""

    def __repr__(self) -> str:
        return "Tokens()"


class Discovery:
    """A provider's endpoints. Safe for threads: one asks, the others wait for what it gets, even an error."""

    def __init__(self, provider: Provider, clock: Callable[[], float] = time.monotonic) -> None:
        self.provider = provider
        self._clock = clock
        self._lock = threading.Lock()
        self._found: Endpoints | None = None
        self._failed = ""
        self._ask_again = float("-inf")

    def endpoints(self) -> Endpoints:
        """The endpoints, at most ``KEPT_S`` old; the last ones while the provider does not answer.

        Raises:
            Unavailable: it did not answer so far, or not with what is needed.
        """
        with self._lock:
            if self._clock() >= self._ask_again:
                try:
                    self._found = discover(self.provider.issuer, self.provider.truststore)
                    self._ask_again = self._clock() + KEPT_S
                except MillstreamError as error:
                    self._failed = error.message
                    self._ask_again = self._clock() + RETRY_S
            if self._found is None:
                raise Unavailable(self._failed)
            return self._found


def discover(issuer: str, truststore: str) -> Endpoints:
    """What the provider says of itself now.

    Raises:
        Unavailable: it does not answer, or with what cannot be used; the message says which.
    """
    try:
        data = fetch(
            issuer.rstrip("/") + _WELL_KNOWN,
            DOCUMENT_BYTES_MAX,
            headers={"Accept": "application/json"},
            truststore=truststore,
        )
        found = msgspec.json.decode(data, type=Endpoints)
    except (Unavailable, Rejected) as error:
        raise Unavailable(f"the OpenID provider cannot be used: {error.message}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unavailable(f"the OpenID provider cannot be used: {issuer}{_WELL_KNOWN} is not its document") from None
    if found.issuer != issuer:
        raise Unavailable(f"the OpenID provider cannot be used: it says that it is {found.issuer[:200]!r}")
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "end_session_endpoint"):
        url: str = getattr(found, name)
        if not is_provider_url(url) and (url or name != "end_session_endpoint"):
            raise Unavailable(f"the OpenID provider cannot be used: its {name} is not https://HOST/PATH")
    return found


def address(endpoints: Endpoints, provider: Provider, redirect_uri: str, state: str, nonce: str, challenge: str) -> str:
    """Where the browser goes to sign in."""
    return _with_query(
        endpoints.authorization_endpoint,
        {
            "response_type": "code",
            "client_id": provider.client_id,
            "redirect_uri": redirect_uri,
            "scope": provider.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        },
    )


def sign_out_address(endpoints: Endpoints, provider: Provider, back: str) -> str:
    """Where the browser goes to end its session at the provider; empty if the provider has no such page."""
    if not endpoints.end_session_endpoint:
        return ""
    fields = {"client_id": provider.client_id, "post_logout_redirect_uri": back}
    return _with_query(endpoints.end_session_endpoint, fields)


def challenge_of(verifier: str) -> str:
    """What the provider gets of a verifier before the code (RFC 7636 §4.2)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def exchange(endpoints: Endpoints, provider: Provider, code: str, verifier: str, redirect_uri: str) -> Tokens:
    """The tokens for a code. None of them has been tested.

    Raises:
        Rejected: the provider refuses the code or the client, or sends no ID token.
        Unavailable: it does not answer.
    """
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri, "code_verifier": verifier}
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if provider.client_secret and "client_secret_basic" in endpoints.token_endpoint_auth_methods_supported:
        pair = ":".join(map(urllib.parse.quote_plus, (provider.client_id, provider.client_secret)))
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    else:
        form["client_id"] = provider.client_id
        if provider.client_secret:
            form["client_secret"] = provider.client_secret
    body = urllib.parse.urlencode(form).encode()
    try:
        data = fetch(
            endpoints.token_endpoint, DOCUMENT_BYTES_MAX, body=body, headers=headers, truststore=provider.truststore
        )
    except Rejected as error:
        raise Rejected(f"the OpenID provider gives no token for this sign-in: {error.message}") from None
    except Unavailable as error:
        raise Unavailable(f"the OpenID provider cannot be used: {error.message}") from None
    try:
        found = msgspec.json.decode(data, type=Tokens)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Rejected("the OpenID provider sends no ID token; the scope has to have 'openid'") from None
    if len(found.id_token) > TOKEN_CHARACTERS_MAX:
        raise Rejected(f"the OpenID provider sends an ID token of more than {TOKEN_CHARACTERS_MAX} characters")
    return found


def _with_query(url: str, fields: dict[str, str]) -> str:
    parts = urllib.parse.urlsplit(url)
    query = "&".join(filter(None, (parts.query, urllib.parse.urlencode(fields))))
    return urllib.parse.urlunsplit(parts._replace(query=query))
