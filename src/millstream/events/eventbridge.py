"""Event patterns in the language of Amazon EventBridge (the user guide's "comparison operators").

A pattern is an object. Each key names a field of the metadata, by name or as a dotted path; a value is a list of
alternatives, or an object with patterns for the field's own fields. Every key must match. A field that is a list
matches if one of its elements does. ``"$or"`` holds a list of patterns, one of which must match.

Alternatives: a plain value (equal, of the same type), or an object with one of ``prefix``, ``suffix``,
``equals-ignore-case``, ``anything-but``, ``numeric``, ``exists``, ``wildcard``. ``prefix`` and ``suffix`` take a text
or ``{"equals-ignore-case": text}``. ``anything-but`` takes values, or one of ``prefix``, ``suffix``, ``wildcard``,
``equals-ignore-case``. ``numeric`` takes one or two comparisons: ``[">", 0, "<=", 5]``.

A pattern is compiled once; what is not in the language is ``InvalidDescription`` then, never a silent mismatch.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from millstream.events.descriptions import InvalidDescription

Matcher: TypeAlias = Callable[[Any], bool]
"""Whether a value of the metadata matches; ``MISSING`` stands for a field that is not there."""


class _Missing:
    """The value of a field that is not there."""


MISSING: Final = _Missing()
DEPTH_MAX: Final = 64

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compile_pattern(pattern: Mapping[str, Any], depth_max: int = DEPTH_MAX) -> Matcher:
    """A function that says whether metadata match.

    Raises:
        InvalidDescription: the pattern is not in the language, or nests deeper than ``depth_max``.
    """
    if depth_max == 0:
        raise InvalidDescription(f"a pattern of more than {DEPTH_MAX} levels")
    if not pattern:
        raise InvalidDescription("an empty pattern matches nothing that can be named: leave the validator out")
    fields: list[tuple[tuple[str, ...], Matcher]] = []
    either: list[Matcher] = []
    for key, wanted in pattern.items():
        if key == "$or":
            either = _alternatives_of_or(wanted, depth_max)
        elif isinstance(wanted, Mapping):
            fields.append(((key,), _nested(compile_pattern(wanted, depth_max - 1))))
        elif isinstance(wanted, list) and wanted:
            fields.append(((key,), _any_of(wanted)))
        else:
            raise InvalidDescription(f"{key!r}: a list of alternatives or an object, not {wanted!r}")

    def matches(metadata: Any) -> bool:
        return all(match(_field(metadata, path[0])) for path, match in fields) and (
            not either or any(match(metadata) for match in either)
        )

    return matches


def _alternatives_of_or(wanted: Any, depth_max: int) -> list[Matcher]:
    if not isinstance(wanted, list) or len(wanted) < 2 or not all(isinstance(one, Mapping) for one in wanted):
        raise InvalidDescription("'$or': a list of two patterns or more")
    return [compile_pattern(one, depth_max - 1) for one in wanted]


def _field(metadata: Any, name: str) -> Any:
    """A field by its name, else by its dotted path."""
    if not isinstance(metadata, Mapping):
        return MISSING
    if name in metadata:
        return metadata[name]
    head, dot, rest = name.partition(".")
    return _field(metadata[head], rest) if dot and head in metadata else MISSING


def _nested(inner: Matcher) -> Matcher:
    def matches(value: Any) -> bool:
        return any(map(inner, value)) if isinstance(value, list) else inner(value)

    return matches


def _any_of(wanted: list[Any]) -> Matcher:
    alternatives = [_alternative(one) for one in wanted]

    def matches(value: Any) -> bool:
        values = value if isinstance(value, list) and value else [value]
        return any(match(one) for match in alternatives for one in values)

    return matches


def _alternative(wanted: Any) -> Matcher:
    if isinstance(wanted, Mapping):
        name, argument = _only(wanted)
        make = _OPERATORS.get(name)
        if make is None:
            raise InvalidDescription(f"no comparison {name!r}; there are {', '.join(_OPERATORS)}")
        return make(argument)
    if isinstance(wanted, list):
        raise InvalidDescription(f"{wanted!r} is no value")
    return lambda value: _same(value, wanted)


def _only(wanted: Mapping[str, Any]) -> tuple[str, Any]:
    if len(wanted) != 1:
        raise InvalidDescription(f"one comparison an alternative, not {sorted(wanted)}")
    return next(iter(wanted.items()))


def _same(value: Any, wanted: Any) -> bool:
    """Equal as JSON: true is not 1, and 1 is 1.0."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    return value == wanted and (value is None) == (wanted is None)


def _text(operand: Any, name: str) -> str:
    if not isinstance(operand, str):
        raise InvalidDescription(f"{name!r} compares with a text, not with {operand!r}")
    return operand


def _on_text(test: Callable[[str], bool]) -> Matcher:
    return lambda value: isinstance(value, str) and test(value)


def _prefix(operand: Any) -> Matcher:
    if isinstance(operand, Mapping):
        folded = _ignoring_case(operand, "prefix")
        return _on_text(lambda value: value.casefold().startswith(folded))
    start = _text(operand, "prefix")
    return _on_text(lambda value: value.startswith(start))


def _suffix(operand: Any) -> Matcher:
    if isinstance(operand, Mapping):
        folded = _ignoring_case(operand, "suffix")
        return _on_text(lambda value: value.casefold().endswith(folded))
    end = _text(operand, "suffix")
    return _on_text(lambda value: value.endswith(end))


def _ignoring_case(operand: Mapping[str, Any], name: str) -> str:
    inner, argument = _only(operand)
    if inner != "equals-ignore-case":
        raise InvalidDescription(f"{name!r} takes a text or 'equals-ignore-case', not {inner!r}")
    return _text(argument, inner).casefold()


def _equals_ignore_case(operand: Any) -> Matcher:
    folded = _text(operand, "equals-ignore-case").casefold()
    return _on_text(lambda value: value.casefold() == folded)


def _wildcard(operand: Any) -> Matcher:
    text = _text(operand, "wildcard")
    if "**" in text:
        raise InvalidDescription("'wildcard' has two asterisks in a row")
    parts = re.split(r"(\\.|\*)", text)
    pattern = "".join(".*" if part == "*" else re.escape(part.removeprefix("\\")) for part in parts)
    compiled = re.compile(pattern, re.DOTALL)
    return _on_text(lambda value: compiled.fullmatch(value) is not None)


def _exists(operand: Any) -> Matcher:
    if not isinstance(operand, bool):
        raise InvalidDescription(f"'exists' is true or false, not {operand!r}")
    return lambda value: (value is not MISSING) == operand


def _anything_but(operand: Any) -> Matcher:
    if isinstance(operand, Mapping):
        name, argument = _only(operand)
        if name not in ("prefix", "suffix", "wildcard", "equals-ignore-case"):
            raise InvalidDescription(f"'anything-but' takes no {name!r}")
        texts = argument if isinstance(argument, list) else [argument]
        refused = [_OPERATORS[name](text) for text in texts]
    else:
        values = operand if isinstance(operand, list) else [operand]
        if not values or any(isinstance(one, list | Mapping) for one in values):
            raise InvalidDescription(f"'anything-but' takes values, not {operand!r}")
        refused = [_alternative(one) for one in values]
    return lambda value: value is not MISSING and not any(match(value) for match in refused)


def _numeric(operand: Any) -> Matcher:
    if not isinstance(operand, list) or len(operand) not in (2, 4):
        raise InvalidDescription(f"'numeric' takes one or two comparisons, not {operand!r}")
    tests: list[tuple[Callable[[Any, Any], bool], float]] = []
    for sign, number in zip(operand[::2], operand[1::2], strict=True):
        if sign not in _COMPARISONS or not _is_number(number):
            raise InvalidDescription(f"'numeric': no comparison {sign!r} with {number!r}")
        tests.append((_COMPARISONS[sign], number))
    return lambda value: _is_number(value) and all(test(value, number) for test, number in tests)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_OPERATORS: Final[Mapping[str, Callable[[Any], Matcher]]] = {
    "prefix": _prefix,
    "suffix": _suffix,
    "equals-ignore-case": _equals_ignore_case,
    "anything-but": _anything_but,
    "numeric": _numeric,
    "exists": _exists,
    "wildcard": _wildcard,
}
