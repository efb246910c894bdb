"""What commands print: tables for people, JSON for programs, progress on stderr.

Tables adapt to the terminal's width; into a pipe or file they are plain lines as wide as their content. Remarks go to
stderr, and so do progress bars where that is a terminal.

Names of groups, clients and headers are chosen by clients, and errors are worded by brokers: each may contain a
sequence that moves a terminal's cursor, hides text or answers for the user. ``plain`` escapes them, and everything that
a command prints passes through it here. Data of records (``emit`` of bytes) are changed on a terminal only; a pipe or a
file gets the bytes that they are.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final, Self, cast

from millstream.cli.failure import OutputLost, ReaderLeft

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.progress import Progress, TaskID

_FOLDED_MIN: Final = 12
"""Minimum width of a text column, in characters."""

FIRST_TASK: Final = cast("TaskID", 0)
"""rich numbers tasks from 0; the import of its type would cost every command."""

_UNSAFE: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
"""Control characters (C0, DEL, C1) but tab and line end, separators of lines, marks that turn the direction of text,
and halves of surrogate pairs, which no terminal's encoding has.
"""


def plain(text: str) -> str:
    """Escape what could act on a terminal. JSON that passes through keeps its meaning."""
    if text.isprintable():
        return text
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def plain_line(text: str) -> str:
    """The same for a name within a line: tabs and line ends are escaped as well."""
    return text if text.isprintable() else plain(text).replace("\n", "\\n").replace("\t", "\\t")


def emit(data: str | bytes) -> None:
    """Write to stdout: a text for people or programs, or the data of a record. Raises ReaderLeft if the pipe is
    closed, OutputLost if the write fails.
    """
    try:
        if isinstance(data, str):
            sys.stdout.write(plain(data))
        elif sys.stdout.isatty():
            sys.stdout.write(plain(data.decode(errors="backslashreplace")))
        else:
            sys.stdout.buffer.write(data)
    except BrokenPipeError:
        raise ReaderLeft from None
    except OSError as error:
        raise _lost(error) from None


def emit_now() -> None:
    """Flush stdout."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderLeft from None
    except OSError as error:
        raise _lost(error) from None


def _lost(error: OSError) -> OutputLost:
    return OutputLost(f"the output cannot be written: {(error.strerror or str(error)).lower()}")


def print_json(document: Any) -> None:
    """One indented JSON document on stdout."""
    emit(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "nothing to show") -> None:
    """A table on stdout. Columns named with a leading ``#`` are numbers and stand to the right; None shows as ``-``."""
    cells = [tuple("-" if cell is None or cell == "" else plain_line(str(cell)) for cell in row) for row in rows]
    if not cells:
        remark(empty)
    elif sys.stdout.isatty():
        _print_for_terminal(columns, cells)
    else:
        _print_for_pipe(columns, cells)


def print_paragraphs(entries: Iterable[tuple[str, str]]) -> None:
    """A heading and its text, indented and wrapped, for tables whose last column is prose."""
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size().columns, 100)
    for heading, text in entries:
        body = textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    ")
        emit(f"{heading}\n{body}\n")


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Name and value, one a line, values aligned. On a terminal a long value continues in further lines, at words."""
    pairs = [(name, "-" if value is None or value == "" else plain_line(str(value))) for name, value in facts]
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        emit(f"{name:<{width}}  {_wrapped(value, width + 2)}\n")


def _wrapped(value: str, indent: int) -> str:
    """A value after ``indent`` columns of a terminal's line. A word is never cut: an address can be copied."""
    if not sys.stdout.isatty():
        return value
    import shutil
    import textwrap

    room = max(_FOLDED_MIN, shutil.get_terminal_size().columns - indent)
    lines = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)


def remark(sentence: str) -> None:
    """A line for people beside the data: stderr, so that a pipe does not carry it."""
    sys.stderr.write(f"{plain(sentence)}\n")


class NoProgress:
    """A progress bar without output, for stderr that is no terminal. It saves the import of rich."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add_task(self, description: str, *, total: float | None = None) -> TaskID:  # noqa: ARG002
        return FIRST_TASK

    def advance(self, task_id: TaskID, advance: float) -> None:
        pass

    def update(self, task_id: TaskID, *, completed: float | None = None, description: str | None = None) -> None:
        pass


def progress(*, show: bool = True) -> Progress | NoProgress:
    """A byte progress bar on stderr; silent where that is no terminal or ``show`` is false."""
    if not (show and sys.stderr.isatty()):
        return NoProgress()
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(file=sys.stderr), transient=True)


def _print_for_terminal(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in which text folds and numbers do not, or one value a line where the terminal is too narrow for that."""
    import shutil

    widths = _widths(columns, rows)
    least = [
        width if column.startswith("#") else min(width, max(_FOLDED_MIN, len(column)))
        for column, width in zip(columns, widths, strict=True)
    ]
    gaps = 3 * (len(columns) - 1)
    if sum(least) + gaps > shutil.get_terminal_size().columns:
        _print_down(columns, rows)
        return
    _print_folded(columns, least, rows)


def _print_down(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Each row as lines of name and value, with an empty line between two rows."""
    for number, row in enumerate(rows):
        if number:
            emit("\n")
        print_facts(zip((column.removeprefix("#").lower() for column in columns), row, strict=True))


def _print_folded(columns: Sequence[str], least: Sequence[int], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column, width in zip(columns, least, strict=True):
        number = column.startswith("#")
        justify = "right" if number else "left"
        table.add_column(column.removeprefix("#"), justify=justify, overflow="fold", no_wrap=number, min_width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout, highlight=False).print(table)


def _print_for_pipe(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns, two spaces apart, one line a row and nothing cut off: for grep and awk."""
    widths = _widths(columns, rows)
    for line in [tuple(column.removeprefix("#") for column in columns), *rows]:
        parts = [
            cell.rjust(width) if column.startswith("#") else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        emit("  ".join(parts).rstrip() + "\n")


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Of each column, in characters: its heading or its longest cell."""
    return [
        max(len(column.removeprefix("#")), *(len(row[index]) for row in rows)) for index, column in enumerate(columns)
    ]


def count_progress(what: str, total: int | None) -> Progress | NoProgress:
    """A counting progress bar on stderr, for output that goes into a file: silent where people see the data itself.

    It has one task, ``FIRST_TASK``.
    """
    if sys.stdout.isatty() or not sys.stderr.isatty():
        return NoProgress()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
    bar.add_task(what, total=total)
    return bar


def rate(count: int, noun: str, size: int, seconds: float) -> str:
    """``1,000 records, 97.7 KiB in 0.21 s (4,762 records/s)``."""
    from millstream.config.forms import human_size

    per_second = f" ({count / seconds:,.0f} {noun}s/s)" if seconds > 0 and count else ""
    return f"{count:,} {noun}{'' if count == 1 else 's'}, {human_size(size)} in {seconds:.2f} s{per_second}"
