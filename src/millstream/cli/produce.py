"""``millstream produce``: records from lines of stdin or a file.

A line is a value, or key and value around ``--key-separator``, or with ``--format json`` a whole record. The command
ends when every record is acknowledged; if one is refused it stops reading, says which and why, and exits with 1.

A broker whose disk is full refuses with an error that librdkafka retries silently until ``--timeout``. So a command
that waits longer than a moment asks the leaders of the topic, says once on stderr that their disk is full, and tries
on.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, BinaryIO

import click

from millstream.cli.completion import complete_topics
from millstream.cli.connect import admin_client, explained, producer_client
from millstream.cli.explained import explain
from millstream.cli.failure import CommandFailed, Interrupted, WrongUsage
from millstream.cli.interrupts import interruptible
from millstream.cli.options import as_json_option, bootstrap_option
from millstream.cli.output import print_json, progress, rate, remark
from millstream.cli.records import Header, NewRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from millstream.cli.confluent import KafkaError, Message, Producer

_POLL_EVERY = 1_000
_LAST_WAIT_S = 2.0
_PATIENCE_S = 2.0
"""A wait for acknowledgements is explained after this long."""
_TIMED_OUT = ("_MSG_TIMED_OUT", "KAFKA_STORAGE_ERROR")
ACKS = ("all", "1", "0")
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
FORMATS = ("line", "json")


@click.command("produce")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics, help="Where the records go.")
@click.option("--file", "-f", default="-", metavar="PATH", help="Read a file; - is stdin.")
@click.option(
    "--format", "format_name", default="line", metavar="line|json", help="One value or one JSON record a line."
)
@click.option("--key-separator", "-K", metavar="TEXT", help="What stands between key and value.")
@click.option("--key", "-k", metavar="TEXT", help="The key of every record.")
@click.option("--header", "-H", multiple=True, metavar="NAME=VALUE", help="A header of every record; may be repeated.")
@click.option(
    "--partition",
    "-p",
    type=click.IntRange(min=-1),
    default=-1,
    metavar="N",
    help="Send to this partition; -1 lets the key decide.",
)
@click.option("--count", "-n", type=click.IntRange(min=1), metavar="N", help="Stop after so many records.")
@click.option("--acks", default="all", metavar="all|1|0", help="Whose acknowledgement to wait for.")
@click.option("--compression", "-z", default="none", metavar="none|gzip|snappy|lz4|zstd", help="Compress batches.")
@click.option("--idempotent", is_flag=True, help="Never store a record twice when sending is repeated.")
@as_json_option
@bootstrap_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=2000000.0),
    default=30.0,
    metavar="SECONDS",
    help="How long one record may take.",
)
def produce(
    topic: str,
    file: str,
    format_name: str,
    key_separator: str | None,
    key: str | None,
    header: tuple[str, ...],
    partition: int,
    count: int | None,
    acks: str,
    compression: str,
    idempotent: bool,
    as_json: bool,
    bootstrap: str,
    timeout: float,
) -> None:
    """Send records read from stdin or a file, one a line."""
    _one_of("--acks", acks, ACKS)
    _one_of("--compression", compression, COMPRESSIONS)
    if key_separator == "":
        raise WrongUsage("--key-separator: '' is not valid, expected at least one character")
    parse = _parser(format_name, key_separator or "", key)
    headers = [_header(text) for text in header or ()]
    configuration = {
        "acks": acks,
        "compression.type": compression,
        "linger.ms": 5,
        "message.timeout.ms": int(timeout * 1000),
        "enable.idempotence": idempotent,
        "allow.auto.create.topics": True,
    }
    began = time.monotonic()
    with _opened(file) as source:
        sending = Sending(producer_client(bootstrap, configuration), topic, partition, bootstrap)
        records = _records(source, parse, count, show_progress=file != "-")
        try:
            with interruptible():
                try:
                    sending.send_all(records, headers)
                except CommandFailed:
                    sending.finish(timeout)
                    raise
                sending.finish(timeout)
        except KeyboardInterrupt:
            raise Interrupted(sending.settled(_LAST_WAIT_S)) from None
        finally:
            _report(sending, time.monotonic() - began, as_json=as_json)


def _report(sending: Sending, seconds: float, *, as_json: bool) -> None:
    count, size = sending.acknowledged, sending.size
    if as_json:
        print_json({"topic": sending.topic, "records": count, "bytes": size, "seconds": round(seconds, 3)})
    else:
        remark(f"sent to '{sending.topic}': {rate(count, 'record', size, seconds)}")


class Sending:
    """Records in flight: counts acknowledgements, keeps the first refusal, and waits when the queue is full."""

    def __init__(self, producer: Producer, topic: str, partition: int, bootstrap: str) -> None:
        self.producer = producer
        self.topic = topic
        self.partition = partition
        self.bootstrap = bootstrap
        self.queued = self.sent = self.acknowledged = self.size = 0
        self.failure: CommandFailed | None = None
        self._asked = False

    def send_all(self, records: Iterable[NewRecord], headers: Sequence[Header]) -> None:
        """Queue records, each with ``headers`` before its own, until they end or one is refused."""
        for record in records:
            if self.failure is not None:
                return
            self.send(record, headers)

    def send(self, record: NewRecord, headers: Sequence[Header]) -> None:
        """Queue one record; returns when there is room for it."""
        headed = [*headers, *record.headers] or None
        with explained(f"topic '{self.topic}'", self.bootstrap):
            began = time.monotonic()
            while not self._queued(record, headed):
                self.producer.poll(0.1)
                if self.failure is not None:
                    return
                if time.monotonic() - began > _PATIENCE_S:
                    self._say_full()
        self.sent += 1
        if self.sent % _POLL_EVERY == 0:
            self.producer.poll(0)

    def settled(self, timeout_s: float) -> str:
        """Wait a moment for acknowledgements that are on their way; then say how many records are in doubt."""
        with suppress(KeyboardInterrupt):
            self.producer.flush(timeout_s)
        doubtful = max(self.queued - self.acknowledged, 0)
        unknown = f"{doubtful:,} are not and may or may not be stored" if doubtful else "none is in doubt"
        return f"interrupted: {self.acknowledged:,} records are confirmed, {unknown}"

    def finish(self, timeout_s: float) -> None:
        """Wait until everything is acknowledged; raises what was refused."""
        ends = time.monotonic() + timeout_s + 1
        if self.producer.flush(min(_PATIENCE_S, timeout_s)) and self.failure is None:
            self._say_full()
        self.producer.flush(max(ends - time.monotonic(), 0.0))
        if self.failure is not None:
            unsent = self.sent - self.acknowledged
            raise CommandFailed(f"{self.failure} ({_were(self.acknowledged)} stored, {unsent:,} not)")
        missing = self.sent - self.acknowledged
        if missing:
            raise CommandFailed(
                f"{missing:,} of {self.sent:,} records were not acknowledged in time; they may or may not be stored"
            )

    def _say_full(self) -> None:
        """Say that a full disk is what the records wait for, if a leader of the topic answers so. Asks only once."""
        from millstream.cli.confluent import KafkaException
        from millstream.cli.full_disks import disk_full, full_disks

        if self._asked:
            return
        self._asked = True
        with suppress(CommandFailed, KafkaException):
            client = admin_client(self.bootstrap)
            topic = client.list_topics(self.topic, timeout=_LAST_WAIT_S).topics[self.topic]
            leaders = {one.leader for one in topic.partitions.values() if one.leader >= 0}
            if full := full_disks(client, leaders):
                remark(f"{disk_full(full)}; each record is tried until --timeout is over")

    def _behind(self, failure: CommandFailed) -> CommandFailed:
        """What is behind a time-out: a full disk, if a broker says so."""
        from millstream.cli.confluent import KafkaException
        from millstream.cli.full_disks import explain_time_out

        try:
            client = admin_client(self.bootstrap)
            return explain_time_out(client, client.list_topics(timeout=_LAST_WAIT_S).brokers, failure)
        except (CommandFailed, KafkaException):
            return failure

    def _queued(self, record: NewRecord, headers: list[Header] | None) -> bool:
        try:
            self.queued += 1  # before the call: an interrupt after it must not find fewer queued than acknowledged
            self.producer.produce(
                self.topic,
                value=record.value,
                key=record.key,
                headers=headers,
                partition=self.partition,
                timestamp=record.timestamp_ms,
                on_delivery=self._delivered,
            )
        except BufferError:
            self.queued -= 1
            return False
        return True

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
            self.size += len(message.key() or b"") + len(message.value() or b"")
        elif self.failure is None:
            failure = explain(error, f"topic '{message.topic()}'", self.bootstrap)
            self.failure = self._behind(failure) if error.name() in _TIMED_OUT else failure


def _were(count: int) -> str:
    return f"{count:,} record was" if count == 1 else f"{count:,} records were"


def _records(
    source: BinaryIO, parse: Callable[[bytes, int], NewRecord], count: int | None, *, show_progress: bool
) -> Iterator[NewRecord]:
    """Parsed lines, at most ``count``, with a progress bar where the length of the source is known."""
    total = os.fstat(source.fileno()).st_size if show_progress else 0
    with progress(show=show_progress) if show_progress else nullcontext() as bar:
        task = bar.add_task("sending", total=total or None) if bar is not None else None
        done = 0
        for number, line in enumerate(source, start=1):
            yield parse(line.rstrip(b"\n").removesuffix(b"\r"), number)
            done += len(line)
            if bar is not None and task is not None and number % _POLL_EVERY == 0:
                bar.update(task, completed=done)
            if number == count:
                break


def _parser(format_name: str, key_separator: str, key: str | None) -> Callable[[bytes, int], NewRecord]:
    """What reads a line (given with its number) into a record."""
    _one_of("--format", format_name, FORMATS)
    if format_name == "json":
        if key_separator or key is not None:
            raise WrongUsage("--key and --key-separator are for --format line; a JSON record carries its own key")
        from millstream.cli.record_input import record_from_json

        return record_from_json
    if key_separator and key is not None:
        raise WrongUsage("--key and --key-separator cannot be given together; one of them decides the key")
    return _line_reader(key_separator.replace("\\t", "\t").encode(), None if key is None else key.encode())


def _line_reader(separator: bytes, fixed_key: bytes | None) -> Callable[[bytes, int], NewRecord]:
    def read(line: bytes, number: int) -> NewRecord:
        if not separator:
            return NewRecord(value=line, key=fixed_key)
        key, found, value = line.partition(separator)
        if not found:
            raise CommandFailed(
                f"line {number} has no {separator.decode()!r} between key and value; nothing from it on was sent, "
                "choose another --key-separator or mend the line"
            )
        return NewRecord(value=value, key=key)

    return read


@contextmanager
def _opened(path: str) -> Generator[BinaryIO]:
    if path == "-":
        if sys.stdin.isatty():
            remark("one record a line, Ctrl-D ends")
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below, opening errors are distinguished from reading errors
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    with file:
        yield file


def _header(text: str) -> Header:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise WrongUsage(f"--header: {text!r} is not valid, expected NAME=VALUE")
    return name, value.encode()


def _one_of(option: str, given: str, words: tuple[str, ...]) -> None:
    if given not in words:
        raise WrongUsage(f"{option}: {given!r} is not valid, expected {', '.join(words[:-1])} or {words[-1]}")
