"""``millstream top``: what each shard of a running broker is doing, renewed every few seconds.

All figures come from the broker's ``/metrics``, which costs its shards nothing. Rates, means and quantiles are those of
the time between two readings. The view has 40 to 80 columns, as many as the terminal. Into a pipe or file, and with
``--count``, snapshots follow each other as plain text; with ``--json`` each is a document of one line.

After a restart of the broker the figures start again, perhaps with another address of ``/metrics``. A broker that does
not answer is asked until it answers, and the view says so. Problems are shown on top; a small terminal shows fewer
other lines. Ctrl-C is how it ends, and no failure.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from millstream.cli.broker_http import http_url
from millstream.cli.exposition import Exposition, read_exposition
from millstream.cli.failure import CommandFailed
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import emit, emit_now, plain
from millstream.cli.top_view import Activity, activity, as_document, as_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@click.command("top")
@click.option(
    "--interval", "-i", type=click.FloatRange(min=0.1), default=2.0, metavar="SECONDS", help="Time between two looks."
)
@click.option(
    "--count",
    "-n",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after so many snapshots. Default: Ctrl-C ends it.",
)
@click.option("--once", is_flag=True, help="End after one snapshot, as --count 1.")
@click.option("--metrics", metavar="URL", help="The broker's /metrics, if it shall not be asked where that is.")
@as_json_option
@bootstrap_option
@timeout_option
def top(
    interval: float, count: int | None, once: bool, metrics: str | None, as_json: bool, bootstrap: str, timeout: float
) -> None:
    """Show what a running broker is doing, shard by shard."""
    if metrics is not None and not metrics.startswith(("http://", "https://")):
        raise CommandFailed(f"--metrics {metrics}: not a URL; broker.json and the broker's ready line name it")
    count = 1 if once else count
    title = bootstrap if metrics is None else metrics
    live = sys.stdout.isatty() and not as_json and count is None
    looks = _looks(
        (lambda: metrics) if metrics is not None else lambda: metrics_url(bootstrap, timeout), interval, timeout
    )
    with suppress(KeyboardInterrupt):  # the ordinary way to leave
        if live:
            _show_live(looks, title)
        else:
            _print_each(looks, title, count, as_json=as_json)


def _print_each(looks: Iterator[Activity | str], title: str, count: int | None, *, as_json: bool) -> None:
    for number, found in enumerate(looks, 1):
        if isinstance(found, str):
            raise CommandFailed(found)
        if as_json:
            import msgspec

            emit(msgspec.json.encode(as_document(found)).decode() + "\n")
        else:
            emit("\n".join(as_lines(found, title)) + "\n\n")
        emit_now()
        if count is not None and number >= count:
            return


def metrics_url(bootstrap: str, timeout: float) -> str:
    """Ask a broker where its ``/metrics`` are; CommandFailed if it has none."""
    return http_url(bootstrap, timeout, "/metrics", "shows no metrics")


def _looks(find: Callable[[], str], interval: float, timeout: float) -> Iterator[Activity | str]:
    """The activity between two readings, repeatedly; a sentence while the broker does not answer. `find` returns the
    URL of the metrics. It must succeed the first time, and is called again when that URL does not answer.
    """
    url: str | None = find()
    before: Exposition | None = None
    silent_since = 0.0
    while True:
        begun = time.monotonic()
        try:
            url = url or find()
            now = read_exposition(url, timeout)
        except (OSError, CommandFailed) as error:
            before = None
            silent_since = silent_since or begun
            reason = getattr(error, "reason", None) or error
            what = f"no metrics from {url}" if url is not None else "no broker"
            yield f"{what} for {begun - silent_since:.0f} s: {reason}"
            url = None
        else:
            silent_since = 0.0
            if before is not None and (found := activity(before, now)) is not None:
                yield found
            before = now
        time.sleep(max(0.0, interval - (time.monotonic() - begun)))


def _show_live(looks: Iterator[Activity | str], title: str) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    waiting = Text(f"millstream {title}: the first figures come with the second look")
    with Live(waiting, console=console, screen=True, auto_refresh=False) as view:
        view.refresh()
        for found in looks:
            lines = [found] if isinstance(found, str) else as_lines(found, title, console.height, console.width)
            view.update(Text(plain("\n".join(lines)), no_wrap=isinstance(found, Activity)), refresh=True)
