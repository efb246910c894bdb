"""How values look on a page: numbers, sizes, times; and lists that are filtered, sorted and cut into pages."""

import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from flask import Flask, request, url_for
from markupsafe import Markup

from millstream.console.payloads import visible

PAGE_ROWS: Final = 50
SAID_MAX: Final = 300
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_T = TypeVar("_T")

Orders = Mapping[str, Callable[[_T], Any]]
"""What a list can be sorted by: a name for the address, and the key of a row."""


class Page(NamedTuple, Generic[_T]):
    """Rows ``first`` to ``last`` (from 1, inclusive) of ``total`` that passed the filter, of ``of`` at all."""

    rows: Sequence[_T]
    number: int
    pages: int
    first: int
    last: int
    total: int
    of: int
    query: str
    sort: str
    descending: bool


def cut(
    items: Iterable[_T],
    name: Callable[[_T], str],
    orders: Orders[_T],
    *,
    sort: str = "name",
) -> Page[_T]:
    """The page that the request's ``q``, ``sort`` and ``page`` name. A minus before ``sort`` turns the order round."""
    every = list(items)
    query = request.args.get("q", "").strip()
    words = query.lower().split()
    found = [item for item in every if all(word in name(item).lower() for word in words)] if words else every
    wanted = request.args.get("sort", sort)
    descending, key = wanted.startswith("-"), wanted.removeprefix("-")
    if key not in orders:
        descending, key = False, sort
    found.sort(key=orders[key], reverse=descending)
    pages = max(-(-len(found) // PAGE_ROWS), 1)
    number = min(max(number_of(request.args.get("page"), 1), 1), pages)
    start = (number - 1) * PAGE_ROWS
    rows = found[start : start + PAGE_ROWS]
    first = start + 1 if rows else 0
    return Page(rows, number, pages, first, start + len(rows), len(found), len(every), query, key, descending)


def number_of(text: str | None, otherwise: int) -> int:
    """A whole number of a request, or what holds without one."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else otherwise


def here(**changes: Any) -> str:
    """The address of this page with other arguments; None takes one away."""
    given: dict[str, Any] = {**request.args.to_dict(), **changes}
    left = {name: value for name, value in given.items() if value is not None and value != ""}
    path = request.script_root + request.path
    return f"{path}?{urllib.parse.urlencode(left)}" if left else path


def sorting(page: Page[Any], key: str) -> str:
    """The address of this page sorted by a column, the other way round if it already is."""
    turned = f"-{key}" if page.sort == key and not page.descending else key
    return here(sort=turned, page=None)


def size(number: float | None) -> str:
    """Bytes with a unit of 1024s."""
    if number is None or number < 0:
        return "–"
    for unit in _UNITS[:-1]:
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} {_UNITS[-1]}"


def number(value: float | None) -> str:
    """A number with its thousands apart."""
    return "–" if value is None else f"{value:,}"


def moment(ms: int | None) -> Markup:
    """A time in UTC."""
    if ms is None or ms < 0 or ms >= 253_402_300_800_000:
        return Markup("–")
    parts = time.gmtime(ms // 1000)
    shown = time.strftime("%Y-%m-%d %H:%M:%S", parts)
    exact = f"{time.strftime('%Y-%m-%dT%H:%M:%S', parts)}.{ms % 1000:03d}Z"
    return Markup('<time datetime="{exact}" title="{exact}">{shown}<small>.{ms}</small></time>').format(
        exact=exact, shown=shown, ms=f"{ms % 1000:03d}"
    )


def dotted(name: str) -> Markup:
    """A name that may be broken after its dots."""
    return Markup(".<wbr>").join(name.split("."))


def address(text: str) -> Markup:
    """``HOST:PORT``, which may be broken before the port."""
    host, colon, port = text.rpartition(":")
    return Markup("{}<wbr>{}").format(host, colon + port)


def duration(ms: int) -> str:
    """A time as its two largest units."""
    left, parts = ms // 1000, list[str]()
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def brief(said: str) -> str:
    """A sentence as short as a cookie needs it: it travels in one to the next page."""
    return said if len(said) <= SAID_MAX else f"{said[:SAID_MAX]}…"


def install(application: Flask) -> None:
    """Give the templates these functions."""
    environment: Any = application.jinja_env
    environment.filters.update(
        size=size, number=number, moment=moment, duration=duration, visible=visible, dotted=dotted, address=address
    )
    environment.globals.update(here=here, sorting=sorting, url_for=url_for)
    environment.trim_blocks = environment.lstrip_blocks = True
