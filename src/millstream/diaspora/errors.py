"""The errors of ``diaspora_stream.api``: one class, a RuntimeError."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from millstream.errors import MillstreamError

_F = TypeVar("_F", bound=Callable[..., Any])


class Exception(RuntimeError):  # noqa: A001 (the name that scripts import)
    """What every call raises that fails."""


ClientException = Exception


class InvalidArgument(Exception, ValueError):
    """A description that is not of the form it must have."""


def translated(function: _F) -> _F:
    """The function with errors of this store as errors of the interface."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except MillstreamError as error:
            raise as_interface(error) from error

    return call  # type: ignore[return-value]


def as_interface(error: builtins.BaseException) -> builtins.BaseException:
    """An error of this store as one of the interface; others as they are."""
    if isinstance(error, MillstreamError):
        return InvalidArgument(error.message) if isinstance(error, ValueError) else Exception(error.message)
    return error
