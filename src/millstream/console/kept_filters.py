"""Filters that a visitor has saved by name: in a cookie of the browser, as the console keeps nothing.

They hold for all topics of the console. A cookie that cannot be read is none; its texts are the visitor's own, are
escaped where they stand, and are parsed as any filter is.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from flask import Response, request
from werkzeug.wrappers import Response as Sent

from millstream.console.cookies import FILTERS, name_of_cookie
from millstream.console.filters import LENGTH_MAX, FilterError, parse
from millstream.errors import Rejected

TITLE_MAX: Final = 40
COUNT_MAX: Final = 20
_BYTES_MAX: Final = 3800
"""Browsers take cookies of 4 KB."""
_YEAR_S: Final = 365 * 86_400


def saved_filters() -> dict[str, str]:
    """The visitor's filters by title."""
    try:
        found = json.loads(base64.urlsafe_b64decode(request.cookies.get(_name(), "")))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    pairs = cast("dict[str, Any]", found).items()
    return {title: text for title, text in pairs if isinstance(text, str) and title and len(title) <= TITLE_MAX}


def with_filter(kept: Mapping[str, str], title: str, text: str) -> dict[str, str]:
    """The filters with another one; without the one of this title if the text is empty.

    Raises:
        Rejected: it has no title, is no filter, or there is no room for it.
    """
    if not 0 < len(title) <= TITLE_MAX:
        raise Rejected(f"a saved filter needs a name of 1 to {TITLE_MAX} characters")
    found = {name: each for name, each in kept.items() if name != title}
    if not text:
        return found
    try:
        parse(text[: LENGTH_MAX + 1])
    except FilterError as error:
        raise Rejected(f"{text[:100]!r} is no filter: {error}") from None
    found[title] = text
    if len(found) > COUNT_MAX or len(_encoded(found)) > _BYTES_MAX:
        raise Rejected(f"{len(kept)} filters are saved, and there is no room for this one: remove one first")
    return found


def keep_filters(answer: Sent, kept: Mapping[str, str]) -> Response:
    """The answer, which has the browser keep these filters."""
    given = cast("Response", answer)
    options: dict[str, Any] = {"path": request.script_root or "/", "httponly": True, "samesite": "Strict"}
    given.set_cookie(_name(), _encoded(kept), max_age=_YEAR_S, secure=request.is_secure, **options)
    return given


def _name() -> str:
    return name_of_cookie(FILTERS, request.host)


def _encoded(kept: Mapping[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(dict(kept)).encode()).decode()
