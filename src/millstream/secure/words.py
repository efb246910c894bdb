"""What a failed TLS handshake means, in words for an operator."""

import ssl
from typing import Final

_REASONS: Final = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not taken",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and ssl.client.auth=required",
    "NO_SHARED_CIPHER": "no cipher suite is common to both sides",
    "UNSUPPORTED_PROTOCOL": "it speaks no version of TLS that is enabled here",
    "NO_PROTOCOLS_AVAILABLE": "it speaks no version of TLS that is enabled here",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it speaks HTTP without TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of this certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it takes no version of TLS that is enabled here",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not take this certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that this certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not take this certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it takes none of the cipher suites, or wants a certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate, and none is set here",
}


def say(error: OSError) -> str:
    """The reason of a failed handshake or a broken connection, to follow "TLS failed with HOST: "."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _REASONS.get(reason) or reason.lower().replace("_", " ") or str(error)
    return error.strerror or str(error)
