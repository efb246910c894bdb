"""OAUTHBEARER for a server: one message with a token.

The token is tested by ``secure.tokens``, which takes long: not here.
"""

from millstream.core.sasl.scram import LoginRefused
from millstream.wire.bearer import BearerFirst, read_bearer_first
from millstream.wire.sasl import MalformedToken


def bearer_login(data: bytes) -> BearerFirst:
    """The token, and as whom the client wants to act.

    Raises:
        LoginRefused: the message is malformed.
    """
    try:
        return read_bearer_first(data)
    except MalformedToken as error:
        raise LoginRefused(f"a malformed OAUTHBEARER message: {error}") from None
