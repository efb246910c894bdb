"""Regular expressions of subscriptions: RE2's syntax, matching in linear time.

RE2 itself (``google-re2``) rather than Python's ``re``: the syntax is the one that Kafka documents (and checks with the
same messages), and no expression, however hostile, backtracks. Names of topics are ASCII, so expressions are read as
Latin-1, which makes classes of Unicode cheap, and nothing is captured. What is left to a hostile expression is its
size, in memory and length: the worst found takes some 60 ms to compile and some 20 ms to match a name of 249
characters; an honest one takes microseconds. Callers match in slices, weighing expressions by ``weight``.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import re2  # pyright: ignore[reportMissingTypeStubs]

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

MEMORY_BYTES: Final = 1 << 20
LENGTH_MAX: Final = 2_048
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
    """The expression, ready for ``fullmatch`` of bytes; Rejected (INVALID_REGULAR_EXPRESSION) when it is none."""
    options: Any = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES
    options.never_capture = True
    options.encoding = re2.Options.Encoding.LATIN1
    if len(expression) > LENGTH_MAX:
        raise _invalid(expression[:64] + "…", "it is too long")
    try:
        return re2.compile(expression.encode(), options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        words = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        # RE2 repeats the culprit behind a colon; Kafka does not.
        words = words.partition(": ")[0]
        raise _invalid(expression, _KAFKA_WORDS.get(words, words)) from None


def matcher(expression: str) -> Callable[[str], bool]:
    """Takes a name and says whether all of it matches. An expression that is none matches nothing: one that another
    broker took may stand in the log.
    """
    try:
        fullmatch: Any = compiled(expression).fullmatch
    except Rejected:
        return lambda name: False  # noqa: ARG005
    return lambda name: fullmatch(name.encode()) is not None


def weight(expression: str) -> int:
    """How many steps a character of a name may take, about."""
    try:
        return int(compiled(expression).programsize)
    except Rejected:
        return 1


def check_expression(expression: str) -> None:
    """Rejected when this is no regular expression."""
    compiled(expression)


def _invalid(expression: str, why: str) -> Rejected:
    return Rejected(
        f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {why}.",
        ErrorCode.INVALID_REGULAR_EXPRESSION,
    )
