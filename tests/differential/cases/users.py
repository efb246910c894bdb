"""Users: what is made of what an administrator may send."""

from differential.table import case
from differential.talk import Talk
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from millstream.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName


def _set(name: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt", salted: bytes = bytes(32)):
    return AlterUserScramCredentialsRequest([], [ScramCredentialUpsertion(name, mechanism, iterations, salt, salted)])


def _ask(t: Talk, *names: str) -> None:
    t.ask(DescribeUserScramCredentialsRequest([UserName(name) for name in names]))


@case("a user comes, changes and goes", AlterUserScramCredentialsRequest)
def _(t: Talk) -> None:
    name = t.name("a")
    t.ask(_set(name))
    _ask(t, name)
    t.ask(_set(name, 2, 8192, salted=bytes(64)))
    _ask(t, name)
    t.ask(_set(name, iterations=16384))
    _ask(t, name, name)
    t.ask(AlterUserScramCredentialsRequest([ScramCredentialDeletion(name, 1)], []))
    _ask(t, name)
    t.ask(AlterUserScramCredentialsRequest([ScramCredentialDeletion(name, 2)], []))
    _ask(t, name, t.name("never"))


@case("two changes of one user", AlterUserScramCredentialsRequest)
def _(t: Talk) -> None:
    name, other = t.name("a"), t.name("b")
    both = [ScramCredentialUpsertion(each, 1, 4096, b"salt", bytes(32)) for each in (name, name, other)]
    t.ask(AlterUserScramCredentialsRequest([], both))
    _ask(t, name, other)
    t.ask(AlterUserScramCredentialsRequest([ScramCredentialDeletion(other, 1)], _set(other).upsertions))
    t.ask(AlterUserScramCredentialsRequest([ScramCredentialDeletion(other, 1)], []))


@case("credentials that cannot be", AlterUserScramCredentialsRequest)
def _(t: Talk) -> None:
    name = t.name("a")
    for request in (
        _set(""),
        _set(name, 0),
        _set(name, 3),
        _set(name, iterations=4095),
        _set(name, iterations=16385),
        _set(name, iterations=-1),
        AlterUserScramCredentialsRequest([ScramCredentialDeletion(name, 0)], []),
        AlterUserScramCredentialsRequest([ScramCredentialDeletion("", 1)], []),
        AlterUserScramCredentialsRequest([ScramCredentialDeletion(name, 1)], []),
        AlterUserScramCredentialsRequest([], []),
    ):
        t.ask(request)
    _ask(t, name)
