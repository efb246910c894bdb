"""Descriptions of validators, selectors and serializers: JSON objects with a ``type``, stored with a topic."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

_T = TypeVar("_T")


class InvalidDescription(Rejected, ValueError):
    """A description of a validator, selector or serializer that makes none."""

    default_code = ErrorCode.INVALID_CONFIG


def choose(what: str, by_type: Mapping[str, Callable[[Mapping[str, Any]], _T]], wanted: object) -> _T:
    """What a description makes; a missing type is ``default``.

    Raises:
        InvalidDescription: the type is unknown, or the description is no object.
    """
    description: Any = {} if wanted is None else wanted
    if not isinstance(description, Mapping):
        raise InvalidDescription(f"a {what} is described by an object with a type, not by {description!r}")
    name = description.get("type", "default")
    make = by_type.get(name) if isinstance(name, str) else None
    if make is None:
        raise InvalidDescription(f"no {what} has the type {name!r}; there are {', '.join(by_type)}")
    return make({"type": name, **description})


def object_of(description: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under a key of a description.

    Raises:
        InvalidDescription: it is missing, or no object.
    """
    if key not in description:
        raise InvalidDescription(f"the type {description['type']!r} needs {key!r}")
    found = description[key]
    if not isinstance(found, dict):
        raise InvalidDescription(f"{key!r} is an object, not {found!r}")
    return found
