"""Whether a visitor sees all of a list.

Brokers leave out of a list what its reader may not describe, and do not say so. So a page that has a list says for whom
it is, unless that visitor may describe everything of that kind, or the cluster controls no access; and a list that is
empty for such a visitor says which right is missing instead of that there is nothing.
"""

from typing import NamedTuple

from flask import current_app, g

from millstream.console.sessions import Sessions
from millstream.console.visits import visit
from millstream.errors import MillstreamError


class Part(NamedTuple):
    """Who sees a part of a list only, and of what kind the list is."""

    who: str
    kind: str

    @property
    def option(self) -> str:
        """Of ``millstream acl create``."""
        return f"--{self.kind.replace(' ', '-')}"


def part_of(kind: str) -> Part | None:
    """Who reads this page, if a list of that kind may lack something for that visitor."""
    sessions: Sessions = current_app.extensions["console"]
    settings = sessions.settings
    if settings.hosted:
        caller = visit()
        return Part(caller.principal, kind) if caller.login and not caller.sees_all(kind) else None
    if settings.login is not None:
        return Part(g.user, kind)
    if settings.security.login is None and not settings.security.tls.keystore_location:
        return None
    return Part("the user of this console", kind)


def lacks_right(error: MillstreamError) -> bool:
    """Whether a right of the caller is missing."""
    return error.code.name.endswith("AUTHORIZATION_FAILED")
