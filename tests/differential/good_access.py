"""Well-formed requests of logins and users; see ``good``."""

from collections.abc import Callable

from differential.talk import Talk
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from millstream.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest
from millstream.wire.schema import Request

GOOD_ACCESS: dict[int, Callable[[Talk], Request]] = {
    17: lambda t: SaslHandshakeRequest("SCRAM-SHA-256"),
    36: lambda t: SaslAuthenticateRequest(b"n,,n=u,r=nonce"),
    50: lambda t: DescribeUserScramCredentialsRequest([UserName(t.name("nobody"))]),
    51: lambda t: AlterUserScramCredentialsRequest(
        [ScramCredentialDeletion(t.name("nobody"), 1)],
        [ScramCredentialUpsertion(t.name("few"), 2, 1, b"salt", b"salted")],
    ),
}
