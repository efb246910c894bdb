"""A generated Python function under construction: lines, indentation, unique local names, and its globals.

Both generators (``decoding``, ``encoding``) write into a ``Source``; ``compile`` turns it into the function. The text
goes to ``linecache``, so that tracebacks, profilers and debuggers show the generated lines. The text contains names
from our declarations only, never bytes from a peer.

Only names from our own declarations end up in the text, never bytes from a peer.
"""

import linecache
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

_LETTERS = {"?": "o", "16s": "u"}


class Source:
    """Source text of one function under construction."""

    def __init__(self, reserved: frozenset[str]) -> None:
        self.lines: list[str] = []
        self.globals: dict[str, Any] = {}
        self._indent = 0
        self._names: dict[str, int] = dict.fromkeys(reserved, 1)

    def line(self, text: str) -> None:
        """Add a line at the current indentation."""
        self.lines.append("    " * self._indent + text)

    @contextmanager
    def block(self, head: str) -> Generator[None, None, None]:
        """Add ``head``, and indent the lines of the ``with`` block."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def local(self, wish: str) -> str:
        """A unique local name: ``wish``, or ``wish`` with a number."""
        count = self._names.get(wish, 0) + 1
        self._names[wish] = count
        return wish if count == 1 else f"{wish}_{count}"

    def constant(self, wish: str, value: Any) -> str:
        """Make ``value`` a global of the function, under ``wish`` or a numbered form of it."""
        name, number = wish, 1
        while name in self.globals and self.globals[name] is not value:
            number += 1
            name = f"{wish}_{number}"
        self.globals[name] = value
        return name

    def packer(self, codes: list[str], unpack: bool) -> tuple[str, int]:
        """Name of the ``pack`` or ``unpack_from`` for these ``struct`` codes, and their size in bytes."""
        layout = struct.Struct(">" + "".join(codes))
        letters = "".join(_LETTERS.get(code, code) for code in codes)
        name = f"unpack_{letters}" if unpack else f"pack_{letters}"
        if name not in self.globals:
            self.globals[name] = layout.unpack_from if unpack else layout.pack
        return name, layout.size

    def text(self) -> str:
        """The source text so far."""
        return "\n".join(self.lines) + "\n"

    def compile(self, function: str, label: str) -> Callable[..., Any]:
        """Execute the text and return ``function``. ``label`` is its file name in tracebacks."""
        text = self.text()
        filename = f"<{label}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.globals)  # noqa: S102 - text comes from our declarations alone
        return self.globals[function]
