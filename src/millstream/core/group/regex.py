"""Regular expressions of subscriptions: RE2's syntax, matching in linear time.

RE2 itself (``google-re2``) and not Python's ``re``: Kafka documents this syntax (and checks it with the same messages),
and no expression can backtrack. Topic names are ASCII, so expressions are read as Latin-1, which makes Unicode classes
cheap, and nothing is captured. What remains to a hostile expression is its size: the worst one found takes about 60 ms
to compile and 20 ms to match a name of 249 characters; an honest one takes microseconds. Callers match in slices, by
``weight``.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import re2  # pyright: ignore[reportMissingTypeStubs]

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

MEMORY_BYTES: Final = 1 << 20
LENGTH_MAX: Final = 2_048
"""Maximum characters of an expression. Kafka has no limit; a topic's name has at most 249 characters."""

_KAFKA_WORDS: Final = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "trailing \\": "trailing backslash at end of expression",
}
"""Messages of Kafka's RE2 port by those of RE2, where the two differ."""


@lru_cache(maxsize=256)
def compiled(expression: str) -> Any:
    """The compiled expression, for ``fullmatch`` of bytes. Rejected (INVALID_REGULAR_EXPRESSION) if it is invalid."""
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
        # RE2 appends the culprit after a colon; Kafka does not.
        words = words.partition(": ")[0]
        raise _invalid(expression, _KAFKA_WORDS.get(words, words)) from None


def matcher(expression: str) -> Callable[[str], bool]:
    """A function that says whether the expression matches a whole name. An invalid expression matches nothing, because
    another broker's log may contain one.
    """
    try:
        fullmatch: Any = compiled(expression).fullmatch
    except Rejected:
        return lambda name: False  # noqa: ARG005
    return lambda name: fullmatch(name.encode()) is not None


def weight(expression: str) -> int:
    """Approximate maximum number of steps per character of a name."""
    try:
        return int(compiled(expression).programsize)
    except Rejected:
        return 1


def check_expression(expression: str) -> None:
    """Rejected if the expression is invalid."""
    compiled(expression)


def _invalid(expression: str, why: str) -> Rejected:
    return Rejected(
        f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {why}.",
        ErrorCode.INVALID_REGULAR_EXPRESSION,
    )
