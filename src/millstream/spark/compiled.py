"""How loops over records become machine code: Numba, from one Python source, kept on disk.

Such loops work on flat arrays and integers, so that the compiled form needs no interpreter and holds no lock. There is
no second implementation: the same functions run uncompiled under ``NUMBA_DISABLE_JIT=1``, which is how a debugger or a
coverage tool looks into them. The first worker on a machine compiles for two seconds, later ones load what it left in a
third of one. A file of the cache that is of no use, for whatever reason, is as good as none.
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
        # Read-only installation and no home, as in many containers: without this Numba refuses to cache at all.
        os.environ["NUMBA_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), f"millstream-numba-{os.getuid()}")

import numba
import numpy as np

_njit: Any = numba.njit
_LOG = logging.getLogger("millstream.spark")


def compiled(signature: Any) -> Any:
    """Compile a function for one signature, or load it compiled."""
    # No reference counts: the caller holds every array for the whole call, and counting in each small function below
    # costs four times what the function does (measured: 10 instead of 39 million records a second).
    options = {"nogil": True, "_nrt": False}

    def compile_now(function: Any) -> Any:
        try:
            return _njit(signature, cache=True, **options)(function)
        except Exception as error:  # noqa: BLE001 (a file of the cache may be damaged in any way)
            _LOG.warning("compiling %s anew, its compiled form on disk is of no use: %r", function.__name__, error)
            return _njit(signature, **options)(function)

    return compile_now


inlined: Any = _njit(nogil=True, _nrt=False, forceinline=True)
"""For small functions: a call would cost more than what they do. They exist only inside their callers."""


@inlined
def copy(target, to, source, at, size):
    """Copies ``size`` bytes. Unsigned positions: signed ones are tested for "negative", and the vector code is lost."""
    first = np.uint64(to)
    start = np.uint64(at)
    for index in range(np.uint64(size)):
        target[first + index] = source[start + index]
