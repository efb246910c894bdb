"""``millstream events export | import``: event topics as files, and Mofka's partitions as event topics.

``export`` writes ``events.jsonl``, one line an event, and ``data/<partition>-<id>`` for each event with data.
``import`` reads such a directory, or one of a Mofka partition: the chunk files that Mofka 0.9 writes, or those that its
documentation describes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from millstream.cli.completion import complete_topics
from millstream.cli.events import events_client, receive, send
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import bootstrap_option, timeout_option
from millstream.cli.output import rate, remark
from millstream.errors import Corruption
from millstream.format.events.chunk import DATA_SUFFIX, INDEX_SUFFIX, META_SUFFIX
from millstream.format.events.mofka import read_mofka_chunk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.events.event import Event

LINES = "events.jsonl"
DATA = "data"


@click.command("export")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics, help="Which event topic.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@bootstrap_option
@timeout_option
def export_topic(topic: str, directory: Path, bootstrap: str, timeout: float) -> None:
    """Write an event topic into a directory: lines of JSON, and a file for the data of each event."""
    if (directory / LINES).exists():
        raise WrongUsage(f"{directory / LINES} exists; name an empty directory")
    (directory / DATA).mkdir(parents=True, exist_ok=True)
    began, size = time.monotonic(), [0]
    with events_client(bootstrap, timeout) as client, open(directory / LINES, "wb") as lines:

        def take(event: Event) -> None:
            data = b"".join(event.data)
            line: dict[str, Any] = {"partition": event.partition, "id": event.id, "metadata": event.metadata}
            if data:
                line["data"] = f"{DATA}/{event.partition}-{event.id}"
                (directory / line["data"]).write_bytes(data)
            size[0] += len(data)
            lines.write(msgspec.json.encode(line) + b"\n")

        count = receive(client.open_topic(topic), take)
    remark(f"{directory}: {rate(count, 'event', size[0], time.monotonic() - began)}")


@click.command("import")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topics, help="Where the events go; it must exist.")
@bootstrap_option
@timeout_option
def import_topic(directory: Path, topic: str, bootstrap: str, timeout: float) -> None:
    """Push what export wrote, or the chunks of a Mofka partition, into an event topic."""
    chunks = sorted(directory.glob(f"chunk-*{INDEX_SUFFIX}"))
    if chunks:
        total = sum(one.with_suffix(DATA_SUFFIX).stat().st_size for one in chunks)
        events = _of_chunks(chunks)
    elif (directory / LINES).exists():
        total = sum(one.stat().st_size for one in (directory / DATA).glob("*"))
        events = _of_lines(directory)
    else:
        raise CommandFailed(
            f"{directory} has neither {LINES} nor chunks (chunk-000000{INDEX_SUFFIX}): nothing to import"
        )
    began = time.monotonic()
    with events_client(bootstrap, timeout) as client:
        count, size = send(client.open_topic(topic), events, total)
    remark(rate(count, "event", size, time.monotonic() - began))


def _of_lines(directory: Path) -> Iterator[tuple[Any, bytes]]:
    root = directory.resolve()
    with open(directory / LINES, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                one = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.MsgspecError as error:
                raise CommandFailed(f"{directory / LINES}, line {number} is no JSON object: {error}") from None
            data = b""
            if "data" in one:
                path = (root / str(one["data"])).resolve()
                if root not in path.parents:
                    raise CommandFailed(f"{directory / LINES}, line {number}: {one['data']} is outside of {directory}")
                data = path.read_bytes()
            yield one.get("metadata"), data


def _of_chunks(chunks: list[Path]) -> Iterator[tuple[Any, bytes]]:
    for path in chunks:
        meta = path.with_suffix(META_SUFFIX).read_bytes()
        with open(path.with_suffix(DATA_SUFFIX), "rb") as data:
            size = data.seek(0, 2)
            try:
                chunk = read_mofka_chunk(path.read_bytes(), meta, size)
            except Corruption as error:
                raise CommandFailed(f"{path}: {error.message}") from None
            if chunk.lost_records:
                remark(f"{path}: the last {chunk.lost_records} events are not whole and are left out")
            for record, text in zip(chunk.records, chunk.metadata(meta), strict=True):
                data.seek(record.data_position)
                try:
                    yield msgspec.json.decode(text), data.read(record.data_size)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise CommandFailed(f"{path}: metadata that are no JSON: {error}") from None
