"""Regular expressions of subscriptions: RE2's syntax, matching in linear time.

RE2 itself (``google-re2``) rather than Python's ``re``: the syntax is the one that Kafka documents (and checks with the
same messages), and no expression, however hostile, backtracks. A compiled expression may use a megabyte at most;
larger ones are refused.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import re2  # pyright: ignore[reportMissingTypeStubs]

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

MEMORY_BYTES: Final = 1 << 20
LENGTH_MAX: Final = 4_096
"""Kafka has no such bound; a topic's name has at most 249 characters."""

_KAFKA_WORDS: Final = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "trailing \\": "trailing backslash at end of expression",
}
"""What the port of RE2 that Kafka uses says where RE2 says otherwise."""


@lru_cache(maxsize=256)
def compiled(expression: str) -> Any:
    """The expression, ready for ``fullmatch``; Rejected (INVALID_REGULAR_EXPRESSION) when it is none."""
    options: Any = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES
    if len(expression) > LENGTH_MAX:
        raise _invalid(expression[:64] + "…", "it is too long")
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        words = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        # RE2 repeats the culprit behind a colon; Kafka does not.
        words = words.partition(": ")[0]
        raise _invalid(expression, _KAFKA_WORDS.get(words, words)) from None


def matcher(expression: str) -> Callable[[str], object]:
    """Takes a name, gives something true when all of it matches. An expression that is none matches nothing: one that
    another broker took may stand in the log.
    """
    try:
        return compiled(expression).fullmatch
    except Rejected:
        return _never


def _never(name: str) -> object:
    _ = name


def check_expression(expression: str) -> None:
    """Rejected when this is no regular expression."""
    compiled(expression)


def _invalid(expression: str, why: str) -> Rejected:
    return Rejected(
        f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {why}.",
        ErrorCode.INVALID_REGULAR_EXPRESSION,
    )
