"""The first user of a broker that starts without a person: ``MILLSTREAM_BOOTSTRAP_USER_FILE``.

The variable names a file whose first line is ``NAME:PASSWORD``, such as a mounted secret. If there are no users when
the broker is ready, this one is created, for SCRAM-SHA-512 and with it for PLAIN; else nothing is done, so the file may
stay. The user has no rights of its own: ``super.users`` names it. A file that cannot be read, or has no such line, ends
the start before anything is changed. The password is in no log.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.core.controller.requests import AlterUsers, SetUser
from millstream.errors import MillstreamError, Unavailable
from millstream.telemetry.log import log
from millstream.wire.sasl import SCRAM_SHA_512, salted_password, verifier_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.cluster.client import ControllerClient
    from millstream.cluster.metadata import MetadataCache
    from millstream.core.controller.requests import Results
    from millstream.shard.control import ControlEnd

VARIABLE: Final = "MILLSTREAM_BOOTSTRAP_USER_FILE"
CREATE_FIRST: Final = "create_first_user"
"""The question on the control channel; it is answered by what is to be logged."""
_ITERATIONS: Final = 8192
_TIMEOUT_US: Final = 60_000_000


def read_first_user() -> bytes | None:
    """The encoded user of the file that the environment names; None without the variable.

    Raises:
        Unavailable: the file cannot be read, or its first line is not NAME:PASSWORD.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            name, _, password = file.readline().rstrip("\r\n").partition(":")
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"{VARIABLE}: {path} cannot be read: {type(error).__name__}") from None
    if not name or not password:
        raise Unavailable(f"{VARIABLE}: the first line of {path} is not NAME:PASSWORD")
    salt = secrets.token_bytes(16)
    salted = salted_password(SCRAM_SHA_512, password, salt, _ITERATIONS)
    user = SetUser(name, SCRAM_SHA_512.number, verifier_of(SCRAM_SHA_512, salted, salt, _ITERATIONS))
    return msgspec.msgpack.encode(user)


def create_first_user(control: ControlEnd, user: bytes | None) -> None:
    """Have the controller's shard create the user, if there is one in the file and none in the cluster."""

    def done(answer: Any) -> None:
        if isinstance(answer, MillstreamError):
            log.error("the first user was not created: %s", answer.message)
        elif answer:
            log.info("%s", answer)

    if user is not None:
        control.ask(CREATE_FIRST, user, done, _TIMEOUT_US)


def serve_first_user(control: ControlEnd, metadata: MetadataCache, client: ControllerClient) -> None:
    """Answer ``CREATE_FIRST`` on the controller's shard."""

    def create(arguments: Any, answer: Callable[[Any], None]) -> None:
        user = msgspec.msgpack.decode(arguments, type=SetUser)
        if metadata.state.security.users:
            answer("")
            return

        def created(results: Results | MillstreamError) -> None:
            if isinstance(results, MillstreamError):
                answer(results)
            elif results[0].error:
                answer(Unavailable(results[0].message or results[0].error.name))
            else:
                answer(f"created the first user, {user.user}")

        client.submit(AlterUsers((), (user,)), created)

    control.serve(CREATE_FIRST, create)
