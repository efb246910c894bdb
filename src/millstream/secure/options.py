"""Settings of TLS, by Kafka's names (``ssl.keystore.location``: ``keystore_location``)."""

from typing import Final

import msgspec

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
NONE, REQUESTED, REQUIRED = "none", "requested", "required"
"""Values of ``ssl.client.auth``."""


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where key and certificates are, and how they are used. Empty text: not given."""

    keystore_type: str = "PEM"
    keystore_location: str = ""
    """File with the private key and the certificate chain."""
    keystore_password: str = ""
    key_password: str = ""
    keystore_key: str = ""
    """The private key itself, PEM (PKCS#8)."""
    keystore_certificate_chain: str = ""
    """The certificate and its intermediates themselves, PEM."""
    key_location: str = ""
    certificate_location: str = ""
    """Key and chain in files of their own, as librdkafka has them."""
    truststore_type: str = "PEM"
    truststore_location: str = ""
    truststore_password: str = ""
    truststore_certificates: str = ""
    """The certificates of authorities themselves, PEM."""
    client_auth: str = NONE
    enabled_protocols: tuple[str, ...] = PROTOCOLS
    cipher_suites: tuple[str, ...] = ()
    """Names as IANA writes them, as in Kafka, or as OpenSSL does; none: OpenSSL's choice."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are read."""
        named = (self.keystore_location, self.key_location, self.certificate_location, self.truststore_location)
        return tuple(path for path in named if path)
