"""``millstream consume``: records of a topic on stdout.

Without ``--group`` it reads every partition and stores no offsets. With ``--group`` it joins that consumer
group, starts where the group stands, and commits what it has printed. Ends after ``--count`` records, with
``--exit-at-end`` at the end of all partitions, or on Ctrl-C or SIGTERM; each of those is success.

Leaving takes no longer than ``--timeout``: with a broker that does not answer any more, the command ends with an error
that names the uncertain commit, and a second Ctrl-C ends it at once. The next consumer of the group prints the records
of an uncertain commit again; none is skipped. If the broker stops, the command waits for it and says so on stderr.

``--isolation`` is the client's ``isolation.level``. With ``read_committed``, the default as it is the client's, the end
of a partition is its last stable offset: records behind an open transaction are neither printed nor waited for by
``--exit-at-end``. ``read_uncommitted`` prints those of open and aborted transactions, too.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import click

from millstream.cli.connect import admin_client, consumer_client, explained, partition_numbers, reachable
from millstream.cli.failure import CommandFailed, WrongUsage, explain, no_answer
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import FIRST_TASK, count_progress, emit, emit_now, remark
from millstream.cli.positions import EXPECTED, Anchor, parse_position, resolve
from millstream.cli.records import TEMPLATE_FIELDS, compile_template, key_and_value, record_to_json, value_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import TracebackType

    from millstream.cli.confluent import Consumer, KafkaError, KafkaException, Message

ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
"""Values of ``--isolation``; the first is the default, as it is librdkafka's."""

_BATCH = 500
_WAIT_S = 0.2
_LOOK_S = 1.0
"""Time between two attempts to connect to a broker that is gone, in s."""


@click.command("consume")
@click.argument("topic", metavar="TOPIC", help="What to read.")
@click.option("--from", "start", metavar="WHERE", help=f"Where to begin: {EXPECTED}; default beginning.")
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
@as_json_option
@bootstrap_option
@timeout_option
def consume(
    topic: str,
    start: str | None,
    group: str | None,
    partition: tuple[int, ...],
    count: int | None,
    exit_at_end: bool,
    isolation: str,
    template: str | None,
    as_json: bool,
    bootstrap: str,
    timeout: float,
) -> None:
    """Print the records of a topic, from its beginning unless --from says otherwise."""
    if as_json and template is not None:
        raise WrongUsage("--json and --format cannot be given together; choose one")
    if group == "":
        raise WrongUsage("--group is empty, expected the name of a consumer group")
    if group is not None and partition:
        raise WrongUsage("--partition and --group cannot be given together; a group shares out partitions itself")
    render = _rendering(template, as_json=as_json)
    watch = Watch(bootstrap)
    settings = _configuration(group, watch, isolation)
    if group is None:
        consumer = _reading_all(topic, start or "beginning", partition, bootstrap, timeout, settings)
    else:
        consumer = _joining(topic, group, start, bootstrap, timeout, settings)
    with (
        _terminated_like_interrupted(),
        Reading(consumer, render, bootstrap, topic, group, timeout, watch) as reading,
        suppress(KeyboardInterrupt),  # the ordinary way to leave
    ):
        reading.run(count, exit_at_end=exit_at_end)


def _rendering(template: str | None, *, as_json: bool) -> Callable[[Message], bytes]:
    """The output form of a record: key and value on a terminal, the value alone in a pipe."""
    if as_json:
        return record_to_json
    if template is not None:
        return compile_template(template)
    return key_and_value if sys.stdout.isatty() else value_line


class Watch:
    """Reports on stderr that the broker is gone, or back. Used by one thread.

    Lifecycle: ``suspect`` is the client's callback for errors; ``look`` runs between two reads, and connects at most
    once in ``_LOOK_S`` while the broker may be gone, never otherwise.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._suspected = False
        self._gone = False
        self._next_look_s = 0.0

    def suspect(self, error: KafkaError) -> None:
        """Note an error that the client reports."""
        self._suspected = self._suspected or _passes_by_itself(error)

    def look(self) -> None:
        """Check whether the broker is reachable after an error, and report a change."""
        if not self._suspected or time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + _LOOK_S
        there = reachable(self._bootstrap)
        if there and self._gone:
            remark(f"a broker answers at {self._bootstrap} again")
        elif not there and not self._gone:
            remark(f"no broker answers at {self._bootstrap}; waiting until one does, Ctrl-C ends this")
        self._gone = not there
        self._suspected = self._gone


class Reading:
    """Prints the records of a consumer, stores the offsets of printed records, and detects the end."""

    def __init__(
        self,
        consumer: Consumer,
        render: Callable[[Message], bytes],
        bootstrap: str,
        topic: str,
        group: str | None,
        timeout_s: float,
        watch: Watch,
    ) -> None:
        self.watch = watch
        self.consumer = consumer
        self.render = render
        self.bootstrap = bootstrap
        self.what = f"topic '{topic}'"
        self.group = group
        self.timeout_s = timeout_s
        self.printed = 0
        self._last: dict[tuple[str, int], Message] = {}  # the last of each partition that may not be committed yet
        self._at_end: set[tuple[str, int]] = set()

    def run(self, count: int | None, *, exit_at_end: bool) -> None:
        """Print records until ``count`` are out, the end is reached (if asked for), or Ctrl-C."""
        with count_progress("reading", count) as bar:
            while count is None or self.printed < count:
                limit = _BATCH if count is None else min(_BATCH, count - self.printed)
                with explained(self.what, self.bootstrap):
                    messages = self.consumer.consume(limit, timeout=_WAIT_S)
                for message in messages:
                    self._take(message)
                self._hand_over()
                self.watch.look()
                bar.update(FIRST_TASK, completed=self.printed)
                if exit_at_end and self._reached_end():
                    return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(CommandFailed):  # the first failure is reported
                self.close()

    def close(self) -> None:
        """Leave the group with what was printed committed, within ``timeout_s``; raises CommandFailed otherwise."""
        try:
            self._hand_over()
        finally:
            leaving = _Leaving(self)
            leaving.start()
            leaving.join(self.timeout_s)
        if self.group is None:
            return  # the broker stores nothing of this consumer
        if leaving.is_alive():
            raise CommandFailed(
                f"group '{self.group}': what was printed last may not be committed, and will be printed again then; "
                f"{no_answer(self.bootstrap, self.timeout_s)}"
            )
        if leaving.failure is not None:
            with explained(f"group '{self.group}'", self.bootstrap):
                raise leaving.failure

    def _hand_over(self) -> None:
        """Flush the output, then allow the group to commit its offsets."""
        emit_now()
        for message in self._last.values():
            self.consumer.store_offsets(message)
        self._last.clear()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self._at_end.discard(_place(message))
            emit(self.render(message))
            self.printed += 1
            if self.group is not None:
                self._last[_place(message)] = message
        elif error.name() == "_PARTITION_EOF":
            self._at_end.add(_place(message))
        elif not _passes_by_itself(error):
            raise explain(error, self.what, self.bootstrap)

    def _reached_end(self) -> bool:
        assigned = {(partition.topic, partition.partition) for partition in self.consumer.assignment()}
        return bool(assigned) and assigned <= self._at_end


class _Leaving(threading.Thread):
    """Commits and closes in a thread, because these calls have no timeout and block signals."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(name="leaving", daemon=True)
        self.reading = reading
        self.failure: KafkaException | None = None

    def run(self) -> None:
        from millstream.cli.confluent import KafkaException

        consumer = self.reading.consumer
        try:
            if self.reading.group is not None and self.reading.printed:
                consumer.commit(asynchronous=False)
        except KafkaException as failure:
            if failure.args[0].name() != "_NO_OFFSET":
                self.failure = failure
        finally:
            consumer.close()


@contextmanager
def _terminated_like_interrupted() -> Generator[None]:
    """SIGTERM, as a service manager sends it, leaves in order, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reading_all(
    topic: str, start: str, only: Sequence[int], bootstrap: str, timeout: float, settings: dict[str, Any]
) -> Consumer:
    """A consumer assigned to the partitions themselves; nothing is committed."""
    from millstream.cli.confluent import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    position = parse_position(start, "--from")
    client = admin_client(bootstrap)
    known = partition_numbers(client, topic, bootstrap, timeout)
    missing = sorted(set(only) - set(known))
    if missing:
        raise WrongUsage(
            f"--partition: topic '{topic}' has no partition {missing[0]}, expected one of {_ranges(known)}"
        )
    chosen = sorted(set(only)) if only else known
    if position.anchor in (Anchor.BEGINNING, Anchor.END):
        where = OFFSET_BEGINNING if position.anchor is Anchor.BEGINNING else OFFSET_END
        offsets = dict.fromkeys(chosen, where)
    else:
        found = resolve(client, [(topic, number) for number in chosen], position, bootstrap, timeout)
        offsets = {number: found[topic, number] for number in chosen}
    consumer = consumer_client(bootstrap, settings)
    consumer.assign([TopicPartition(topic, number, offsets[number]) for number in chosen])
    return consumer


def _joining(
    topic: str, group: str, start: str | None, bootstrap: str, timeout: float, settings: dict[str, Any]
) -> Consumer:
    """A consumer that joins the group; ``start`` counts where the group has no offset yet."""
    position = parse_position(start or "beginning", "--from")
    if position.anchor not in (Anchor.BEGINNING, Anchor.END):
        raise WrongUsage(
            f"--from {start} cannot be used with --group, which starts where it stands; "
            f"'millstream group reset {group} --topic {topic} --to {start} --execute' moves it"
        )
    partition_numbers(admin_client(bootstrap), topic, bootstrap, timeout)
    reset = "earliest" if position.anchor is Anchor.BEGINNING else "latest"
    consumer = consumer_client(bootstrap, settings | {"auto.offset.reset": reset})
    consumer.subscribe([topic])
    return consumer


def _configuration(group: str | None, watch: Watch, isolation: str) -> dict[str, Any]:
    return {
        "group.id": group or "millstream-cli",
        "error_cb": watch.suspect,
        "isolation.level": isolation,
        "enable.auto.commit": group is not None,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
    }


def _passes_by_itself(error: KafkaError) -> bool:
    """Whether librdkafka retries by itself (a broker restarts, a leader moves)."""
    return error.retriable() or error.name() in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE")


def _place(message: Message) -> tuple[str, int]:
    topic, partition = message.topic(), message.partition()
    assert topic is not None and partition is not None, "a record or an end that was fetched has a place"
    return topic, partition


def _ranges(numbers: list[int]) -> str:
    return f"0 to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
