"""Compiles loops over records to machine code with Numba, and caches the result on disk.

Such loops use flat arrays and integers, so the compiled form needs no interpreter and holds no lock. There is no second
implementation: the same functions run uncompiled under ``NUMBA_DISABLE_JIT=1``, for debuggers and coverage tools. The
first worker on a machine compiles for two seconds; later ones load the result in a third of a second. An unusable cache
file is ignored.
"""

# ruff: noqa: ANN001, ANN201 (what goes through a compiler is typed by its signature)
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUntypedFunctionDecorator=false

import logging
import os
import tempfile
from typing import Any

if "NUMBA_CACHE_DIR" not in os.environ:
    _here = os.path.dirname(__file__)
    _home = os.path.expanduser("~")
    _places = (os.path.join(_here, "__pycache__"), _here, os.path.join(_home, ".cache"), _home)
    if not any(os.access(place, os.W_OK) for place in _places):
        # A read-only installation without a home directory, as in many containers: otherwise Numba refuses to cache.
        os.environ["NUMBA_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), f"millstream-numba-{os.getuid()}")

import numba
import numpy as np

_njit: Any = numba.njit
_LOG = logging.getLogger("millstream.spark")


def compiled(signature: Any) -> Any:
    """Compile a function for one signature, or load its compiled form."""
    # No reference counts: the caller holds every array during the whole call, and counting in each small function costs
    # four times its work (measured: 10 instead of 39 million records a second).
    options = {"nogil": True, "_nrt": False}

    def compile_now(function: Any) -> Any:
        try:
            return _njit(signature, cache=True, **options)(function)
        except Exception as error:  # noqa: BLE001 (a file of the cache may be damaged in any way)
            _LOG.warning("compiling %s again, its cached form is unusable: %r", function.__name__, error)
            return _njit(signature, **options)(function)

    return compile_now


inlined: Any = _njit(nogil=True, _nrt=False, forceinline=True)
"""For small functions, whose call would cost more than their work. They exist only inside their callers."""


@inlined
def copy(target, to, source, at, size):
    """Copies ``size`` bytes. Positions are unsigned, because a test for negative ones would prevent vector code."""
    first = np.uint64(to)
    start = np.uint64(at)
    for index in range(np.uint64(size)):
        target[first + index] = source[start + index]
