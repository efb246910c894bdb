"""The document with an issuer's public keys: a file, a URL that is set, or the one that an OpenID provider names."""

from millstream.config.urls import file_of
from millstream.secure.tokens.fetch import fetch, read_small_file
from millstream.secure.tokens.keys import DOCUMENT_BYTES_MAX
from millstream.secure.tokens.rules import TokenRules
from millstream.secure.tokens.sign_in import discover


def read_document(rules: TokenRules) -> bytes:
    """The document that the rules name.

    Raises:
        Unavailable: it cannot be read now.
        Rejected: the server refuses the request.
    """
    url = rules.url or discover(rules.issuer, rules.truststore).jwks_uri
    path = file_of(url)
    if not path:
        return fetch(url, DOCUMENT_BYTES_MAX, headers={"Accept": "application/json"}, truststore=rules.truststore)
    return read_small_file(path, DOCUMENT_BYTES_MAX)
