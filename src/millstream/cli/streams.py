"""The standard streams as commands find them: closed, or of a terminal that is not UTF-8.

A stream that is closed (``>&-``) is replaced, so that no file or socket of the command gets its number. Output is an
error then, as for any other program; input is empty, and remarks go nowhere.

What an encoding lacks is written as an escape of JSON, which keeps documents valid.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import Final

_ESCAPES: Final = "millstream.escapes"


def take_streams() -> None:
    """Make the streams usable. The interpreter has None for those that are closed."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _fill()
    codecs.register_error(_ESCAPES, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors=_ESCAPES)


def _fill() -> None:
    """Open ``/dev/null`` as each descriptor that is closed: descriptor 1 for reading, so that a write to it fails."""
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", 1, encoding="utf-8", closefd=False)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """As the codecs call it: what is written in the place of characters that an encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end
