"""Subjects and the contexts that they are in.

A subject that starts with ``:.name:`` is in the context ``.name``; every other one is in the default context ``.``.
Each context numbers its schemas by itself. ``:.name:`` alone is the context as a whole, where it can be configured.
"""

import re
import urllib.parse
from typing import Final

from millstream.registry.model import Context, Refused, Subject

DEFAULT: Final = Context(".")
_QUALIFIED: Final = re.compile(r":(\.[^:]*):(.*)", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def checked(name: str) -> Subject:
    """A subject from outside, in its one spelling.

    Raises:
        Refused: it is empty, has control characters, or starts like a context and is not one.
    """
    subject = normal(name)
    if not name or _CONTROL.search(name) or len(name.encode("utf-8", "surrogatepass")) > 2000:
        raise Refused(422, 42208, f"The specified subject '{name[:100]}' is not a valid subject.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Refused(422, 42208, "The specified subject is not valid UTF-8.") from None
    return subject


def normal(name: str) -> Subject:
    """The one spelling of a subject: ``:.:orders`` is ``orders``."""
    found = _QUALIFIED.fullmatch(name)
    return Subject(found[2] if found and found[1] == DEFAULT and found[2] else name)


def context_of(subject: str) -> Context:
    """The context that a subject is in."""
    found = _QUALIFIED.fullmatch(subject)
    return Context(found[1]) if found else DEFAULT


_IN_CONTEXT: Final = re.compile(r"/contexts/([^/]+)(/.*)")


def plain_target(target: str) -> str:
    """A request's path and query without the context at the start of the path.

    ``/contexts/.a/subjects/s`` is ``/subjects/:.a:s``; a path without a subject gets the context as its subject, its
    ``subjectPrefix`` or its query's ``subject``, as that path has it. A subject that names a context keeps it.
    """
    path, _, query = target.partition("?")
    found = _IN_CONTEXT.fullmatch(path)
    if found is None:
        return target
    name = urllib.parse.unquote_plus(found[1]).strip(":")
    context = whole(Context(name if name.startswith(".") else f".{name}"))
    parts = found[2].strip("/").split("/")
    first, at = parts[0], 2 if parts[:2] == ["compatibility", "subjects"] else 1
    if first in ("subjects", "compatibility", "config", "mode") and "".join(parts[at : at + 1]):
        parts[at] = urllib.parse.quote(_within(context, urllib.parse.unquote_plus(parts[at])), safe="")
    elif first in ("config", "mode"):
        parts.append(urllib.parse.quote(context, safe=""))
        query += "&defaultToGlobal=true"  # for a client of the context, this is what holds everywhere
    elif parts[:2] == ["schemas", "ids"]:
        query = _with_field(query, "subject", context)
    elif parts in (["subjects"], ["schemas"]):
        query = _with_field(query, "subjectPrefix", context)
    return f"/{'/'.join(parts)}?{query}"


def _with_field(query: str, name: str, context: Subject) -> str:
    given = urllib.parse.parse_qsl(query, keep_blank_values=True)
    rest = [pair for pair in given if pair[0] != name]
    return urllib.parse.urlencode([*rest, (name, _within(context, dict(given).get(name, "")))])


def _within(context: Subject, name: str) -> str:
    return name if _QUALIFIED.fullmatch(name) else f"{context}{name}"


def whole(context: Context) -> Subject:
    """The subject that stands for a context."""
    return Subject(f":{context}:")


def is_whole(subject: str) -> bool:
    """Whether a subject stands for a context."""
    found = _QUALIFIED.fullmatch(subject)
    return found is not None and not found[2]


def beside(subject: Subject, name: str) -> Subject:
    """A subject that another one's schema names: in the same context, unless it says which."""
    context = context_of(subject)
    plain = _QUALIFIED.fullmatch(name) is None
    return Subject(f":{context}:{name}") if plain and context != DEFAULT else normal(name)
