"""The filter language of messages: parsed into a tree of closures, never run as code.

::

    value.order.total > 3 and key ~ "^eu-"          not (headers.retry or value.kind in ["a", "b"])

    expression  = both ("or" both)*
    both        = one ("and" one)*
    one         = "not" one | "(" expression ")" | test
    test        = term [("=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~" | "contains" | "in") term]
    term        = path | text | number | "true" | "false" | "null" | "[" term ("," term)* "]"
    path        = ("key" | "value" | "headers" | "topic" | "partition" | "offset" | "timestamp" | "size") step*
    step        = "." name | "[" number "]" | "[" text "]"

A path that is not there is null. A test without an operator holds if its term is there and is not false. Values of
different types are different, and none is less than the other. ``timestamp`` is compared with numbers (ms since 1970)
or with texts such as "2026-01-31T08:00Z". ``~`` searches with RE2, in time linear to its input; so no filter can run
away. ``key ~`` and ``value ~`` search what the record shows as text, in any format.

Bad input raises ``FilterError`` with the position. The bounds are ``LENGTH_MAX`` characters and ``DEPTH_MAX`` levels.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, cast

import re2

LENGTH_MAX: Final = 2000
DEPTH_MAX: Final = 32
ROOTS: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "size")

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"""
    r"""|(?P<name>[^\W\d][\w$-]*)|(?P<sign>==|!=|<=|>=|!~|[=<>~().,\[\]]))"""
)
_OPERATORS: Final = ("=", "==", "!=", "<", "<=", ">", ">=", "~", "!~", "contains", "in")
_QUIET: Final = re2.Options()
_QUIET.log_errors = False  # what is wrong with a pattern is said to who wrote it
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


class FilterError(ValueError):
    """The filter cannot be read. ``position`` counts characters from 0."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class Subject(NamedTuple):
    """What a filter looks at. ``roots`` are the values of the paths' first names; ``texts`` those of key and value as
    they are shown.
    """

    roots: Mapping[str, Any]
    texts: Mapping[str, str]


Match = Callable[[Subject], bool]
_Term = Callable[[Subject], Any]


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


class _Parsed(NamedTuple):
    """A term: how to get its value, how to get its text, and its value if it is the same for every record."""

    value: _Term
    text: _Term
    constant: Any
    is_constant: bool
    is_timestamp: bool


def parse(text: str) -> Match:
    """The filter as a function.

    Raises:
        FilterError: it is not of the language.
    """
    if len(text) > LENGTH_MAX:
        raise FilterError(f"a filter has at most {LENGTH_MAX} characters", LENGTH_MAX)
    parser = _Parser(_tokens(text), len(text))
    match = parser.expression(0)
    parser.end()
    return match


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position = 0
    while text[position:].strip():
        token = _TOKEN.match(text, position)
        if token is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            raise FilterError(f"{text[start]!r} is not expected here", start)
        kind = token.lastgroup or ""
        found.append(_Token(kind, token[kind], token.start(kind)))
        position = token.end()
    return found


class _Parser:
    """Recursive descent over the tokens; ``depth`` bounds the recursion."""

    def __init__(self, tokens: list[_Token], length: int) -> None:
        self._tokens = tokens
        self._length = length
        self._next = 0

    def end(self) -> None:
        if self._next < len(self._tokens):
            left = self._tokens[self._next]
            raise FilterError(f"{left.text!r} is not expected here: 'and' or 'or' joins two tests", left.position)

    def expression(self, depth: int) -> Match:
        if depth > DEPTH_MAX:
            raise self._error(f"a filter has at most {DEPTH_MAX} levels")
        parts = [self._both(depth)]
        while self._takes("or"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else lambda subject: any(part(subject) for part in parts)

    def _both(self, depth: int) -> Match:
        parts = [self._one(depth)]
        while self._takes("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else lambda subject: all(part(subject) for part in parts)

    def _one(self, depth: int) -> Match:
        negations = 0
        while self._takes("not"):
            negations += 1
        if self._takes("("):
            inner = self.expression(depth + 1)
            self._need(")")
        else:
            inner = self._test()
        return (lambda subject: not inner(subject)) if negations % 2 else inner

    def _test(self) -> Match:
        left = self._term(0)
        token = self._peek()
        if token is None or token.kind == "text" or token.text not in _OPERATORS:
            value = left.value
            return lambda subject: value(subject) not in (None, False)
        self._next += 1
        right = self._term(0)
        if token.text in ("~", "!~"):
            return self._search(left, right, token)
        if left.is_timestamp or right.is_timestamp:
            left, right = _as_time(left, token), _as_time(right, token)
        if token.text in ("contains", "in"):
            whole, part = (left, right) if token.text == "contains" else (right, left)
            return lambda subject: _contains(whole.value(subject), part.value(subject))
        compare = _COMPARISONS[token.text]
        return lambda subject: compare(left.value(subject), right.value(subject))

    def _search(self, left: _Parsed, right: _Parsed, token: _Token) -> Match:
        if not right.is_constant or not isinstance(right.constant, str):
            raise FilterError(f"{token.text} needs a pattern in quotes after it", token.position)
        try:
            pattern: Any = re2.compile(right.constant, _QUIET)
        except re2.error as error:
            reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
            raise FilterError(f"{right.constant!r} is no pattern: {reason}", token.position) from None
        text, wanted = left.text, token.text == "~"

        def search(subject: Subject) -> bool:
            shown = text(subject)
            # JSON can hold half surrogates, and RE2 reads UTF-8.
            found = shown is not None and pattern.search(shown.encode(errors="backslashreplace").decode()) is not None
            return found == wanted

        return search

    def _term(self, depth: int) -> _Parsed:
        token = self._peek()
        if token is None:
            raise self._error("something is missing at the end")
        self._next += 1
        if token.kind == "text":
            return _constant(_unquoted(token.text))
        if token.kind == "number":
            number = float(token.text) if any(mark in token.text for mark in ".eE") else int(token.text)
            return _constant(number)
        if token.text in ("true", "false", "null"):
            return _constant({"true": True, "false": False, "null": None}[token.text])
        if token.text == "[":
            return self._list(depth)
        if token.text in ROOTS:
            return self._path(token.text)
        meant = "" if token.kind != "name" else f"; a path starts with one of {', '.join(ROOTS)}"
        raise FilterError(f"{token.text!r} is not expected here{meant}", token.position)

    def _list(self, depth: int) -> _Parsed:
        if depth >= DEPTH_MAX:
            raise self._error(f"a filter has at most {DEPTH_MAX} levels")
        parts: list[Any] = []
        while not self._takes("]"):
            if parts:
                self._need(",")
            part = self._term(depth + 1)
            if not part.is_constant:
                raise self._error("a list has texts and numbers only")
            parts.append(part.constant)
        return _constant(parts)

    def _path(self, root: str) -> _Parsed:
        steps: list[str | int] = []
        while True:
            if self._takes("."):
                step = self._peek()
                if step is None or step.kind not in ("name", "number"):
                    raise self._error("a name is missing after the point")
                self._next += 1
                steps.append(step.text)
            elif self._takes("["):
                step = self._peek()
                if step is None or step.kind not in ("text", "number"):
                    raise self._error('[ needs a number or a text after it, as in value["a b"]')
                self._next += 1
                if step.kind == "number" and not step.text.lstrip("-").isdecimal():
                    raise FilterError("a place in a list is a whole number", step.position)
                steps.append(int(step.text) if step.kind == "number" else _unquoted(step.text))
                self._need("]")
            else:
                break

        def value(subject: Subject) -> Any:
            found = subject.roots.get(root)
            for step in steps:
                found = _step(found, step)
            return found

        def text(subject: Subject) -> Any:
            if not steps and root in subject.texts:
                return subject.texts[root]
            found = value(subject)
            return found if found is None or isinstance(found, str) else str(found)

        return _Parsed(value, text, None, False, root == "timestamp" and not steps)

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _takes(self, text: str) -> bool:
        token = self._peek()
        if token is not None and token.text == text and token.kind != "text":
            self._next += 1
            return True
        return False

    def _need(self, text: str) -> None:
        if not self._takes(text):
            raise self._error(f"{text} is missing")

    def _error(self, message: str) -> FilterError:
        token = self._peek()
        return FilterError(message, self._length if token is None else token.position)


def _constant(value: Any) -> _Parsed:
    text = value if value is None else str(value)

    def itself(_: Subject) -> Any:
        return value

    def shown(_: Subject) -> Any:
        return text

    return _Parsed(itself, shown, value, True, False)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1], flags=re.DOTALL)


def _as_time(term: _Parsed, token: _Token) -> _Parsed:
    """A text that is compared with a timestamp, in ms; a time without a zone is UTC, as timestamps are shown."""
    if not term.is_constant or not isinstance(term.constant, str):
        return term
    try:
        moment = datetime.fromisoformat(term.constant)
    except ValueError:
        raise FilterError(f"{term.constant!r} is no time such as 2026-01-31T08:00Z", token.position) from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return _constant(int(zoned.timestamp() * 1000))


def _step(found: Any, step: str | int) -> Any:
    if isinstance(found, Mapping):
        return cast("Mapping[str, Any]", found).get(str(step))
    if isinstance(found, list):
        place = int(step) if isinstance(step, int) or step.isdecimal() else None
        items = cast("list[Any]", found)
        return items[place] if place is not None and -len(items) <= place < len(items) else None
    return None


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, list):
        return any(_same(item, part) for item in cast("list[Any]", whole))
    return isinstance(whole, Mapping) and isinstance(part, str) and part in whole


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def _ordered(left: Any, right: Any) -> bool:
    return any(
        isinstance(left, kind)
        and isinstance(right, kind)
        and not isinstance(left, bool)
        and not isinstance(right, bool)
        for kind in (str, (int, float))
    )


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": _same,
    "==": _same,
    "!=": lambda left, right: not _same(left, right),
    "<": lambda left, right: _ordered(left, right) and left < right,
    "<=": lambda left, right: _ordered(left, right) and left <= right,
    ">": lambda left, right: _ordered(left, right) and left > right,
    ">=": lambda left, right: _ordered(left, right) and left >= right,
}
