"""The client's side of a SASL login: which tokens are sent, and what the server's answers have to be.

Pure: ``exchange`` yields a token and is sent the server's answer, until it ends. Both clients of the project, the one
with threads and the one of events, carry the tokens.

A token comes from a file or an issuer, which may take seconds: ``exchange`` blocks for it.

SCRAM computes PBKDF2 once for each user, salt and number of iterations, and remembers it: a job with many connections
pays for one. The server has to prove that it knows the password, too. The number of iterations is bounded, because a
server that is not a broker could ask for a billion.
"""

import secrets
from collections.abc import Generator
from functools import lru_cache
from typing import Final

from millstream.client.security import Login, token_for
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.bearer import GIVE_UP, OAUTHBEARER, bearer_first, refusal_status
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from millstream.wire.messages.sasl_handshake import SaslHandshakeResponse
from millstream.wire.sasl import (
    ON_BEHALF,
    PLAIN,
    SCRAM_BY_NAME,
    Behalf,
    MalformedToken,
    ScramMechanism,
    auth_message,
    behalf_token,
    client_final,
    client_first,
    plain_token,
    read_server_first,
    salted_password,
    server_is_right,
)

_NONCE_BYTES: Final = 24


def exchange(login: Login) -> Generator[bytes, bytes, None]:
    """The tokens of one login.

    Raises:
        Rejected: the server's answer is not what it has to be.
    """
    mechanism = SCRAM_BY_NAME.get(login.mechanism)
    if mechanism is not None:
        yield from _scram(mechanism, login)
    elif login.mechanism == PLAIN:
        yield plain_token(login.username, login.password)
    elif login.mechanism == ON_BEHALF:
        yield behalf_token(Behalf(login.username, login.host))
    else:
        answer = yield bearer_first(token_for(login).text)
        if answer:
            yield GIVE_UP  # a broker of Kafka answers it with the same words and an error
            raise _refused(f"the token is not taken: {refusal_status(answer)}")


def check_handshake(login: Login, answer: SaslHandshakeResponse) -> None:
    """Raise Rejected if the broker does not take the mechanism."""
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise _refused("this listener asks for none; set security.protocol=PLAINTEXT, or SSL where it takes TLS")
    if answer.error_code:
        offered = ", ".join(answer.mechanisms) or "none"
        raise _refused(f"it takes no logins by {login.mechanism}, but by {offered}")


def check_answer(login: Login, answer: SaslAuthenticateResponse) -> bytes:
    """The server's token. Raises Rejected if it refuses the login."""
    if answer.error_code and login.mechanism == OAUTHBEARER:
        raise _refused(f"the token is not taken: {refusal_status((answer.error_message or '').encode())}")
    if answer.error_code:
        raise _refused(answer.error_message or f"it refuses the login of {login.username!r}")
    return answer.auth_bytes


def _scram(mechanism: ScramMechanism, login: Login) -> Generator[bytes, bytes, None]:
    first = client_first(login.username, secrets.token_urlsafe(_NONCE_BYTES))
    answer = yield first.gs2_header + first.bare
    try:
        challenge = read_server_first(answer, first.nonce)
        salted = _salted(mechanism, login.password, challenge.salt, challenge.iterations)
        final = client_final(mechanism, salted, first, challenge)
        answer = yield final
        without_proof = final.rpartition(b",p=")[0]
        proved = server_is_right(mechanism, salted, auth_message(first, challenge, without_proof), answer)
    except MalformedToken as error:
        raise _refused(str(error)) from None
    if not proved:
        raise _refused("the server does not know the password that it asks for")


@lru_cache(maxsize=64)
def _salted(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    return salted_password(mechanism, password, salt, iterations)


def _refused(why: str) -> Rejected:
    return Rejected(f"the login failed: {why}", ErrorCode.SASL_AUTHENTICATION_FAILED)
