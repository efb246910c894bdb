"""Errors of the source and the sink as one sentence on the user's screen, instead of the stack of a Python process that
the user never started.

Spark runs the methods of a Python source in processes of its own and shows their errors with a traceback. ``plain``
leaves the traceback of our own errors out, as Spark's setting ``hideTraceback`` would for all Python code: an
environment variable, which the process reads when it reports the error with which it ends. Errors that are not ours
keep their traceback.
"""

import functools
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from millstream.errors import MillstreamError, Unavailable, how_to_install
from millstream.model.error_code import ErrorCode

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_NEEDED: Final = ("numba", "numpy", "pyarrow")
_METHODS: Final = (
    "schema", "reader", "streamReader", "writer", "streamWriter", "partitions", "read", "pushFilters", "initialOffset",
    "latestOffset", "prepareForTriggerAvailableNow", "write", "commit",
)  # fmt: skip

_Class = TypeVar("_Class", bound=type)


def plainly(kind: _Class) -> _Class:
    """Class decorator: the methods that Spark calls raise our errors without a traceback."""
    for name in _METHODS:
        method = kind.__dict__.get(name)
        if inspect.isfunction(method):
            setattr(kind, name, _plain(method))
    return kind


def require_packages() -> None:
    """Ask for what tasks need, before a task fails without it.

    Raises:
        Unavailable: a package of the extra is not installed.
    """
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise Unavailable(f"millstream.spark needs {package}, which is not installed: {how_to_install('spark')}")


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            result = method(*args, **named)
        except MillstreamError as error:
            raise _told(error) from None
        return _told_later(result) if inspect.isgenerator(result) else result

    return call


def _told_later(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except MillstreamError as error:
        raise _told(error) from None


def _told(error: MillstreamError) -> MillstreamError:
    os.environ[_HIDE] = "1"
    remedy = "; start the broker, or correct kafka.bootstrap.servers"
    if isinstance(error, Unavailable) and error.code is ErrorCode.NETWORK_EXCEPTION:
        return Unavailable(error.message.removesuffix(remedy) + remedy, error.code)
    return error
