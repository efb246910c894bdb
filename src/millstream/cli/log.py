"""``millstream log``: inspect a broker's data directory without a broker.

``verify`` reads every byte and reports damage. ``dump`` shows the content of a file, batch by batch or record by
record. Neither changes anything. While a broker runs on the directory, ``verify`` needs ``--running``, and checks only
data that are durable for certain.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.lock import lock_holder
from millstream.cli.options import as_json_option
from millstream.cli.output import emit, print_facts, print_json, print_table, progress, remark
from millstream.model.quantities import RaftGroupId

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.storage.disk import Disk
    from millstream.storage.verification.log import Finding, Progress


data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="The broker's data directory.",
)
topic_option = click.option("--topic", "-t", metavar="TOPIC", help="Only this topic.")


@click.command("verify")
@data_option
@topic_option
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Only this partition of the topic.")
@click.option("--deep", is_flag=True, help="Decompress every batch and read its records, too.")
@click.option("--running", is_flag=True, help="A broker is running: judge only what checkpoints made durable.")
@as_json_option
def verify(data: Path, topic: str | None, partition: int | None, deep: bool, running: bool, as_json: bool) -> None:
    """Check every byte of a broker's logs; exit code 1 if anything durable is damaged."""
    from millstream.storage.chunks import ChunkDisk
    from millstream.storage.disk import SystemDisk
    from millstream.storage.verification.log import Progress, find_logs, verify_log
    from millstream.storage.verification.wal import settled, verify_wal, wal_bytes

    if partition is not None and topic is None:
        raise WrongUsage("--partition needs --topic")
    _must_be_data(data)
    if not running:
        _must_be_idle(data)
    disk, root = ChunkDisk(SystemDisk()), str(data)
    logs = [one for one in find_logs(disk, root) if topic is None or (one.topic, bool(one.topic)) == (topic, True)]
    if partition is not None:
        logs = [one for one in logs if one.partition == partition]
    if topic is not None and not logs:
        raise _no_files(data, topic, partition)
    with_wal = topic is None and not running
    total = sum(one.size_bytes for one in logs) + (wal_bytes(disk, root) if with_wal else 0)
    begun = time.monotonic()
    with progress() as bar:
        task = bar.add_task("verifying", total=total)
        check = Progress(lambda count: bar.advance(task, count))
        stopped = not running and settled(disk, root)
        waiting = {} if running or stopped else _wal_offsets(disk, root)
        for one in logs:
            bar.update(task, description=one.name)
            mine = waiting.get((one.topic_id, one.partition), ())
            verify_log(disk, one, check, deep=deep, running=running, settled=stopped, waiting=mine)
        if with_wal:
            bar.update(task, description="write-ahead log")
            verify_wal(disk, root, check, _group_names(disk, root))
    _report(check, time.monotonic() - begun, root, as_json=as_json)
    if check.corrupt:
        raise click.exceptions.Exit(1)


def _report(check: Progress, seconds: float, root: str, *, as_json: bool) -> None:
    from millstream.config.forms import human_size
    from millstream.storage.verification.log import CORRUPT

    tally = check.tally
    if as_json:
        print_json(
            {
                "ok": not check.corrupt,
                "logs": tally.logs,
                "segments": tally.segments,
                "batches": tally.batches,
                "records": tally.records,
                "wal_frames": tally.frames,
                "bytes": tally.bytes,
                "findings": [_document(one, root) for one in check.findings],
            }
        )
        return
    damaged = sum(1 for one in check.findings if one.severity == CORRUPT)
    if check.findings:
        columns = ["SEVERITY", "LOG", "#OFFSET", "FILE", "#BYTE", "WHAT"]
        print_table(columns, [tuple(_document(one, root).values()) for one in check.findings])
        emit("\n")
    speed = f" ({human_size(int(tally.bytes / seconds))}/s)" if seconds > 0.01 else ""
    print_facts(
        [
            ("logs", f"{tally.logs:,} with {tally.segments:,} segments"),
            ("batches", f"{tally.batches:,} with {tally.records:,} records"),
            ("read", f"{human_size(tally.bytes)} in {seconds:.2f} s{speed}"),
            ("damaged", damaged or "nothing"),
            ("mended at the next start", len(check.findings) - damaged or "nothing"),
        ]
    )


def _document(one: Finding, root: str) -> dict[str, Any]:
    return {
        "severity": one.severity,
        "log": one.log,
        "offset": None if one.offset < 0 else one.offset,
        "file": os.path.relpath(one.file, root),
        "byte": None if one.position < 0 else one.position,
        "what": one.what,
    }


@click.command("dump")
@click.argument(
    "files",
    nargs=-1,
    type=click.Path(path_type=Path),
    metavar="[FILE]...",
    help="Segment, index, write-ahead log, epochs or snapshot files.",
)
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="DIR", help="The data directory, with --topic and --partition."
)
@topic_option
@click.option("--partition", "-p", type=click.IntRange(min=0), default=0, metavar="N", help="Partition of the topic.")
@click.option("--from", "start", type=click.IntRange(min=0), default=0, metavar="OFFSET", help="First offset to show.")
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), metavar="N", help="Show at most so many batches (or frames)."
)
@click.option("--records", is_flag=True, help="Show the records in each batch, also of write-ahead logs.")
@as_json_option
def dump(
    files: tuple[Path, ...],
    data: Path | None,
    topic: str | None,
    partition: int,
    start: int,
    limit: int | None,
    records: bool,
    as_json: bool,
) -> None:
    """Show the content of files, or of all segments of a partition; one JSON document a line with --json."""
    from millstream.cli.log_dump import Dump
    from millstream.storage.disk import SystemDisk
    from millstream.storage.verification.log import find_logs, segment_paths

    if bool(files) == (topic is not None):
        raise WrongUsage("name either FILEs, or a partition with --data DIR --topic TOPIC --partition N")
    disk = SystemDisk()
    shown = Dump(start=start, limit=limit, records=records, as_json=as_json)
    if files:
        for file in files:
            if not file.is_file():
                raise CommandFailed(f"there is no file {file}")
        for file in files:
            shown.show(str(file))
        return
    if data is None:
        raise WrongUsage("--topic needs --data DIR")
    _must_be_data(data)
    found = [one for one in find_logs(disk, str(data)) if (one.topic, one.partition) == (topic, partition)]
    if not found:
        raise _no_files(data, topic or "", partition)
    for path in segment_paths(disk, found[0]):
        shown.show(path)


def _name(topic: str, partition: int | None) -> str:
    return f"topic '{topic}'" if partition is None else f"partition {partition} of topic '{topic}'"


def _no_files(data: Path, topic: str, partition: int | None) -> CommandFailed:
    return CommandFailed(
        f"there are no segments of {_name(topic, partition)} in {data}; records of the last minute may be in the "
        f"write-ahead log alone, which 'millstream log dump --records {data}/wal/*/*.wal' shows"
    )


def _must_be_data(data: Path) -> None:
    if not (data / "wal").is_dir() and not (data / "topics").is_dir():
        raise CommandFailed(
            f"{data} is not the data directory of a broker; name the directory given to 'millstream start --data'"
        )


def _must_be_idle(data: Path) -> None:
    """Raises CommandFailed if a broker runs on the directory."""
    holder = lock_holder(data)
    if holder is not None:
        raise CommandFailed(
            f"a broker (process {holder or 'unknown'}) runs on {data}; stop it, "
            "or add --running to judge only what is durable for certain"
        )


def _wal_offsets(disk: Disk, data_dir: str) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """What the write-ahead log holds (``wal.wal_offsets``), by topic id and partition of `LogFiles`."""
    from millstream.storage.verification.wal import wal_offsets

    groups = _read_groups(disk, data_dir)
    found = wal_offsets(disk, data_dir)
    return {groups[group][1]: offsets for group, offsets in found.items() if group in groups}


def _group_names(disk: Disk, data_dir: str) -> Callable[[int], str]:
    """The names of the logs of Raft groups, read from the controller's log on first use, as far as it is readable."""
    groups: dict[int, tuple[str, tuple[str, int]]] = {}

    def name_of(group: int) -> str:
        if not groups:
            groups.update(_read_groups(disk, data_dir))
        return groups[group][0] if group in groups else f"group {group}"

    return name_of


def _read_groups(disk: Disk, data_dir: str) -> dict[int, tuple[str, tuple[str, int]]]:
    """The name of each group's log, and its topic id and partition."""
    from millstream.cluster.state_files import apply_following, load_state
    from millstream.errors import MillstreamError
    from millstream.storage.verification.wal import wal_batches

    names = {0: ("controller", ("", 0))}
    try:
        state, _ = load_state(disk, data_dir)
        apply_following(state, wal_batches(disk, data_dir, RaftGroupId(0)))
    except (MillstreamError, OSError) as error:
        remark(f"the controller's log cannot be read ({error}); partitions are named by their group")
    else:
        names |= {
            group: (f"{topic.name}/{index}", (topic.topic_id.hex(), index))
            for group, (topic, index) in state.groups().items()
        }
    return names
