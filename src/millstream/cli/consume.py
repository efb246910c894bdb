"""``millstream consume``: records of topics on stdout.

Topics are named, or matched by ``--pattern``: without a group those that exist when the command starts, with one those
that come later, too.

Without ``--group`` it reads every partition (``cli/consume_partitions.py``): it stores no offsets and looks up no
coordinator, so the broker stores nothing for it. With ``--group`` it joins that consumer group, starts at the committed
offsets, and commits the records that it has printed (``cli/consume_group.py``). Ends after ``--count`` records, with
``--exit-at-end`` at the end of all partitions, or on Ctrl-C or SIGTERM; each of those is success.

Leaving takes no longer than ``--timeout``: with a broker that stopped answering, the command ends with an error
that names the uncertain commit, and a second Ctrl-C ends it at once. The next consumer of the group prints the records
of an uncertain commit again; none is skipped. If the broker stops, the command waits for it and says so on stderr.

``--isolation`` is the client's ``isolation.level``. With ``read_committed``, the default as it is the client's, the end
of a partition is its last stable offset: records after an open transaction are neither printed nor waited for by
``--exit-at-end``. ``read_uncommitted`` prints those of open and aborted transactions, too.
"""

from __future__ import annotations

import re
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, Self

import click

from millstream.cli.completion import complete_topics
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, registry_option, timeout_option
from millstream.cli.output import FIRST_TASK, count_progress, emit, emit_now
from millstream.cli.positions import EXPECTED
from millstream.cli.records import TEMPLATE_FIELDS, compile_template, key_and_value, record_to_json, value_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import TracebackType

    from millstream.cli.decoding import Decoding
    from millstream.cli.records import Message

ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
"""Values of ``--isolation``; the first is the default, as it is librdkafka's."""

_BATCH = 500


@click.command("consume")
@click.argument("topics", nargs=-1, metavar="[TOPIC...]", shell_complete=complete_topics, help="What to read.")
@click.option("--pattern", metavar="REGEX", help="Read all topics whose whole name matches, such as 'orders-.*'.")
@click.option("--from", "start", metavar="WHERE", help=f"Where to start: {EXPECTED}; default beginning.")
@click.option("--group", "-g", metavar="GROUP", help="Join this consumer group and commit.")
@click.option(
    "--partition",
    "-p",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="Only this partition; may be repeated.",
)
@click.option("--count", "-n", type=click.IntRange(min=1), metavar="N", help="Stop after so many records.")
@click.option("--exit-at-end", "-e", is_flag=True, help="Stop when there is nothing more to read.")
@click.option(
    "--isolation",
    type=click.Choice(ISOLATION_LEVELS),
    default=ISOLATION_LEVELS[0],
    help="read_uncommitted prints records of open and aborted transactions, too.",
)
@click.option(
    "--format",
    "template",
    metavar="TEMPLATE",
    help=f"Print so, with {', '.join(f'{{{name}}}' for name in TEMPLATE_FIELDS)}. Default: the value; on a terminal "
    "key, tab and value.",
)
@click.option(
    "--decode",
    is_flag=True,
    help="Show values that a schema registry's clients wrote (Avro, JSON, Protobuf) as JSON.",
)
@registry_option
@as_json_option
@bootstrap_option
@timeout_option
def consume(
    topics: tuple[str, ...],
    pattern: str | None,
    start: str | None,
    group: str | None,
    partition: tuple[int, ...],
    count: int | None,
    exit_at_end: bool,
    isolation: str,
    template: str | None,
    decode: bool,
    registry: str | None,
    as_json: bool,
    bootstrap: str,
    timeout: float,
) -> None:
    """Print the records of topics, from their beginning or from --from on."""
    if as_json and template is not None:
        raise WrongUsage("--json and --format cannot be given together; choose one")
    if group == "":
        raise WrongUsage("--group is empty, expected the name of a consumer group")
    if group is not None and partition:
        raise WrongUsage("--partition and --group cannot be given together; a group shares out partitions itself")
    if bool(topics) == (pattern is not None):
        raise WrongUsage("give either the names of topics or --pattern REGEX")
    render = _rendering(template, as_json=as_json)
    if pattern is not None:
        topics = matching(pattern, group is not None, bootstrap, timeout)
    if partition and len(topics) > 1:
        raise WrongUsage("--partition is for one topic, and several are given")
    if group is None:
        from millstream.cli.consume_partitions import PartitionSource

        source: Source = PartitionSource(topics, start or "beginning", partition, isolation, bootstrap, timeout)
    else:
        from millstream.cli.consume_group import GroupSource

        source = GroupSource(topics, group, start, isolation, bootstrap, timeout)
    with (
        _terminated_like_interrupted(),
        Reading(source, render, _decoding(registry, bootstrap) if decode else None) as reading,
        suppress(KeyboardInterrupt),  # the ordinary way to leave
    ):
        reading.run(count, exit_at_end=exit_at_end)


def matching(pattern: str, in_group: bool, bootstrap: str, timeout_s: float) -> tuple[str, ...]:
    """The topics of a pattern; for a group the pattern itself, as its members subscribe to it."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise WrongUsage(f"--pattern: {pattern!r} is no regular expression: {error}") from None
    if in_group:
        return (f"^({pattern})$",)
    from millstream.cli.connect import admin_client, explained

    with explained("topics", bootstrap):
        known = admin_client(bootstrap).list_topics(timeout=timeout_s).topics
    found = tuple(sorted(name for name in known if compiled.fullmatch(name) and not name.startswith("__")))
    if not found:
        raise CommandFailed(f"no topic matches {pattern!r}; 'millstream topic list' shows what exists")
    return found


def _decoding(registry: str | None, bootstrap: str) -> Decoding:
    from millstream.cli.broker_http import registry_of
    from millstream.cli.decoding import Decoding

    return Decoding(registry_of(registry, bootstrap))


def _rendering(template: str | None, *, as_json: bool) -> Callable[[Message], bytes]:
    """The output form of a record: key and value on a terminal, the value alone in a pipe."""
    if as_json:
        return record_to_json
    if template is not None:
        return compile_template(template)
    return key_and_value if sys.stdout.isatty() else value_line


class Source(Protocol):
    """Where the records come from. Errors leave it as ``CommandFailed``."""

    def read(self, limit: int) -> Sequence[Message]:
        """The next records, at most ``limit``; empty after a short wait without any."""
        ...

    def printed(self, message: Any) -> None:
        """Note that a record is in the output."""
        ...

    def flushed(self) -> None:
        """Note that the output with the printed records was written out."""
        ...

    def reached_end(self) -> bool:
        """Whether every partition was read to its end."""
        ...

    def close(self) -> None:
        """Leave. Raises CommandFailed if it is uncertain whether the printed records count as read."""
        ...


class Reading:
    """Prints the records of a source, and closes it."""

    def __init__(self, source: Source, render: Callable[[Message], bytes], decoding: Decoding | None = None) -> None:
        self.source = source
        self.render = render
        self.decoding = decoding
        self.count = 0

    def run(self, limit: int | None, *, exit_at_end: bool) -> None:
        """Print records until ``limit`` are out, the end is reached (if asked for), or Ctrl-C."""
        with count_progress("reading", limit) as bar:
            while limit is None or self.count < limit:
                messages = self.source.read(_BATCH if limit is None else min(_BATCH, limit - self.count))
                shown = messages if self.decoding is None else self.decoding.decoded(messages)
                for message, what in zip(messages, shown, strict=True):
                    emit(self.render(what))
                    self.count += 1
                    self.source.printed(message)
                self._hand_over()
                bar.update(FIRST_TASK, completed=self.count)
                if exit_at_end and self.source.reached_end():
                    return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._close()
        else:
            with suppress(CommandFailed):  # the first failure is reported
                self._close()

    def _close(self) -> None:
        try:
            self._hand_over()
        finally:
            self.source.close()

    def _hand_over(self) -> None:
        """Flush the output, then allow the source to commit its records."""
        emit_now()
        self.source.flushed()


@contextmanager
def _terminated_like_interrupted() -> Generator[None]:
    """SIGTERM, as a service manager sends it, leaves in order, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
