"""``millstream events``: create event topics, push, consume and describe what is in them.

An event is a JSON text and perhaps data. ``push`` makes one of each file, or one of each line of JSON; ``consume``
prints one line of JSON for each, and writes the data of each into a file if it is asked to.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from millstream.cli import identity
from millstream.cli.completion import complete_topics
from millstream.cli.connect import reached
from millstream.cli.explained import unreachable
from millstream.cli.failure import CommandFailed, Interrupted, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import count_progress, emit, print_facts, print_json, print_table, progress, rate, remark
from millstream.errors import MillstreamError, Unavailable
from millstream.model.error_code import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from millstream.events import EventsClient
    from millstream.events.consumer import Consumer
    from millstream.events.event import Event
    from millstream.events.handle import Topic
    from millstream.format.events import DataDescriptor

_UNSENT_MAX = 1000
_encode = msgspec.json.Encoder().encode


@contextlib.contextmanager
def events_client(bootstrap: str, timeout: float) -> Generator[EventsClient]:
    """A client; its errors become sentences."""
    from millstream.events import EventsClient

    address = reached(bootstrap)
    try:
        with EventsClient(address, timeout_s=timeout, security=identity.security()) as client:
            yield client
    except Unavailable as error:
        if error.code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT):
            raise unreachable(address, error.message) from None
        raise CommandFailed(error.message, error.code.name) from None
    except MillstreamError as error:
        raise CommandFailed(error.message, error.code.name) from None


@click.command("create")
@click.argument("topic", metavar="TOPIC", help="Its name.")
@click.option("--partitions", "-p", type=click.IntRange(min=1), default=1, metavar="N", help="Number of partitions.")
@click.option("--replication", type=click.IntRange(min=1), metavar="N", help="Replicas of each; the broker's default.")
@click.option("--validator", metavar="JSON", help="How clients check events: an object with a type.")
@click.option("--selector", metavar="JSON", help="How clients choose partitions: an object with a type.")
@click.option("--serializer", metavar="JSON", help="How clients encode metadata: an object with a type.")
@click.option("--config", "-c", "configs", multiple=True, metavar="NAME=VALUE", help="A topic property; repeatable.")
@bootstrap_option
@timeout_option
def create(
    topic: str,
    partitions: int,
    replication: int | None,
    validator: str | None,
    selector: str | None,
    serializer: str | None,
    configs: tuple[str, ...],
    bootstrap: str,
    timeout: float,
) -> None:
    """Create an event topic."""
    properties = dict(_property(text) for text in configs)
    with events_client(bootstrap, timeout) as client:
        client.create_topic(
            topic,
            partitions_count=partitions,
            replicas_count=replication or -1,
            validator=_description("--validator", validator),
            selector=_description("--selector", selector),
            serializer=_description("--serializer", serializer),
            configs=properties,
        )
    remark(f"created event topic {topic} with {partitions} partition{'' if partitions == 1 else 's'}")


@click.command("describe")
@click.argument(
    "topic",
    required=False,
    shell_complete=complete_topics,
    metavar="[TOPIC]",
    help="Which; without it all event topics are listed.",
)
@as_json_option
@bootstrap_option
@timeout_option
def describe(topic: str | None, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Show an event topic with its partitions, or list all event topics."""
    with events_client(bootstrap, timeout) as client:
        known = client.list_topics()
        if topic is None:
            if as_json:
                print_json(known)
            else:
                rows = [(name, one["partitions"], "yes" if one["complete"] else "no") for name, one in known.items()]
                print_table(("TOPIC", "PARTITIONS", "COMPLETE"), rows, empty="there are no event topics")
            return
        opened = client.open_topic(topic)
        ends = opened.end_ids()
        about = {**known[topic], "event_bytes_max": opened.event_bytes_max}
        if as_json:
            partitions = {
                index: {"first_id": one.first_id, "next_id": one.next_id, "uuid": opened.uuids[index].hex()}
                for index, one in ends.items()
            }
            print_json({"topic": topic, **about, "partitions": partitions})
            return
        print_facts([(name.replace("_", " "), value or "default") for name, value in about.items()])
        emit("\n")
        print_table(
            ("PARTITION", "FIRST ID", "NEXT ID", "EVENTS"),
            [(index, one.first_id, one.next_id, one.next_id - one.first_id) for index, one in ends.items()],
        )


@click.command("push")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics, help="Where the events go.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[FILE]...")
@click.option("--lines", metavar="PATH", help="One event a line of JSON, without data; - is stdin, the default.")
@click.option("--metadata", metavar="JSON", help="An object that is added to the metadata of every file.")
@click.option("--partition", "-P", type=click.IntRange(min=0), metavar="N", help="The partition that is asked for.")
@bootstrap_option
@timeout_option
def push(
    topic: str,
    files: tuple[Path, ...],
    lines: str | None,
    metadata: str | None,
    partition: int | None,
    bootstrap: str,
    timeout: float,
) -> None:
    """Push files with their names as metadata, or lines of JSON."""
    if files and lines:
        raise WrongUsage("files and --lines are two kinds of events: give one of them")
    added = _description("--metadata", metadata) or {}
    began = time.monotonic()
    with events_client(bootstrap, timeout) as client:
        opened = client.open_topic(topic)
        if files:
            count, size = send(opened, _of_files(files, added), sum(one.stat().st_size for one in files), partition)
        else:
            count, size = send(opened, _of_lines(lines or "-"), None, partition)
    remark(rate(count, "event", size, time.monotonic() - began))


def send(
    topic: Topic, events: Iterable[tuple[Any, bytes]], total_bytes: int | None, partition: int | None = None
) -> tuple[int, int]:
    """Push events, with a progress bar of their data; number of events and bytes of data."""
    count = size = 0
    unsent: deque[Any] = deque()
    with progress(show=total_bytes is not None) as bar, topic.producer() as producer:
        task = bar.add_task(topic.name, total=total_bytes)
        try:
            for value, data in events:
                unsent.append(producer.push(value, data, partition=partition))
                count += 1
                size += len(data)
                bar.advance(task, len(data))
                while len(unsent) > _UNSENT_MAX:
                    unsent.popleft().result()
            while unsent:
                unsent.popleft().result()
        except KeyboardInterrupt:
            raise Interrupted(f"{count - len(unsent)} events are stored") from None
    return count, size


def _of_files(files: tuple[Path, ...], added: dict[str, Any]) -> Iterator[tuple[Any, bytes]]:
    for path in files:
        yield {"name": path.name, **added}, path.read_bytes()


def _of_lines(source: str) -> Iterator[tuple[Any, bytes]]:
    with contextlib.nullcontext(sys.stdin.buffer) if source == "-" else open(source, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield msgspec.json.decode(line), b""
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise CommandFailed(f"line {number} is no JSON: {error}; the lines before it are stored") from None


@click.command("consume")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics, help="Whose events.")
@click.option("--name", metavar="NAME", help="Consume under this name and acknowledge: the next run continues there.")
@click.option("--count", "-n", type=click.IntRange(min=1), metavar="N", help="Stop after so many events.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more events instead of ending with the last one.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Write data files here.")
@bootstrap_option
@timeout_option
def consume(
    topic: str, name: str | None, count: int | None, follow: bool, data: Path | None, bootstrap: str, timeout: float
) -> None:
    """Print events, one line of JSON each; their data are read only with --data."""
    with events_client(bootstrap, timeout) as client:
        opened = client.open_topic(topic)
        if data is not None:
            data.mkdir(parents=True, exist_ok=True)

        def take(event: Event) -> None:
            emit(_encode(_line(event)) + b"\n")
            if data is not None:
                (data / f"{event.partition}-{event.id}").write_bytes(b"".join(event.data))

        with contextlib.suppress(KeyboardInterrupt):
            receive(opened, take, name=name, most=count, follow=follow, with_data=data is not None)


def receive(
    topic: Topic,
    take: Callable[[Event], None],
    *,
    name: str | None = None,
    most: int | None = None,
    follow: bool = False,
    with_data: bool = True,
) -> int:
    """Call ``take`` with the events of a topic up to its present end; their number."""
    ends = topic.end_ids()
    options: dict[str, Any] = {}
    if not with_data:
        options = {"data_selector": _no_data, "data_allocator": _no_data}
    with topic.consumer(name or f"cli-{os.getpid()}", **options) as consumer:
        left = {index: one.next_id for index, one in ends.items()}
        total = sum(consumer.lag().values())
        wanted = total if most is None else most if follow else min(most, total)
        taken = 0
        with count_progress(topic.name, None if follow else wanted) as bar:
            while (follow and most is None) or taken < wanted:
                event = _next(consumer)
                if event is None:
                    break
                assert event.id is not None
                if event.id >= left[event.partition] and not follow:
                    continue
                take(event)
                taken += 1
                bar.advance(0, 1)  # type: ignore[arg-type]
                if name is not None:
                    event.acknowledge().result()
    return taken


def _no_data(metadata: Any, descriptor: DataDescriptor) -> None:
    """Select nothing."""
    _ = metadata, descriptor


def _next(consumer: Consumer) -> Event | None:
    """The next event; None at the end of a complete topic. Interruptible."""
    while True:
        try:
            event = consumer.pull(1.0)
        except TimeoutError:
            continue
        return event if event.id is not None else None


def _line(event: Event) -> dict[str, Any]:
    time_of = datetime.fromtimestamp(event.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "partition": event.partition,
        "id": event.id,
        "time": time_of,
        "size": event.descriptor.base_size,
        "metadata": event.metadata,
    }


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise WrongUsage(f"--config {text!r} is no NAME=VALUE")
    return name, value


def _description(option: str, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise WrongUsage(f"{option} is no JSON object: {error}") from None
