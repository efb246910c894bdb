"""``millstream backup``: make, list, verify and restore backups of a cluster, and drill that they can be restored.

Backups are objects: in a directory (``file:///…``), or in a bucket (``s3://…``), whose credentials come from the
environment. ``millstream.backup`` has what is in it and how.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from millstream.cli import identity
from millstream.cli.administrator import SOCKET_FILE, data_option
from millstream.cli.explained import explain_error
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option
from millstream.cli.output import FIRST_TASK, count_progress, emit, print_json, print_table, progress, remark

if TYPE_CHECKING:
    from collections.abc import Generator

    from millstream.backup.model import Backup
    from millstream.backup.restore import Restored
    from millstream.backup.store import BackupStore
    from millstream.client.cluster import Cluster

_LOG: Final = "backup.log"
_AUTHORIZER: Final = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_HOUR_MS: Final = 3_600_000

_from_option = click.option(
    "--from",
    "url",
    required=True,
    metavar="URL",
    help="Where the backups are, such as file:///DIR or s3://BUCKET/PREFIX.",
)
_name_argument = click.argument("name", required=False, metavar="[NAME]")
_timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=1, max=3600),
    default=60.0,
    metavar="SECONDS",
    help="How long to wait for one answer of a broker.",
)
_set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting of the broker that is started; may be repeated.",
)


@click.command("create")
@click.option(
    "--to", "url", required=True, metavar="URL", help="Where backups go, such as file:///DIR or s3://BUCKET/PREFIX."
)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="Remove all but the newest N backups of the cluster afterwards.",
)
@click.option("--full", is_flag=True, help="Read every record again, and replace objects that are damaged.")
@as_json_option
@data_option
@bootstrap_option
@_timeout_option
def create(
    url: str,
    keep: int | None,
    full: bool,
    as_json: bool,
    data: str | None,
    bootstrap: str,
    timeout: float,
) -> None:
    """Make a backup of a cluster: records, settings, offsets of groups, users, rights, quotas."""
    from millstream.backup.create import create as make
    from millstream.config.forms import human_size

    swept: int | None = 0
    with _store(url) as store, _cluster(data, bootstrap, timeout) as cluster, store.running():
        with count_progress("topics", None) as bar:

            def advance(done: int, total: int) -> None:
                bar.update(FIRST_TASK, completed=done)
                _ = total

            made = make(cluster, store, full=full, progress=advance)
        for note in made.backup.notes:
            remark(f"note: {note}")
        gone = store.surplus(made.backup, keep) if keep else []
        if keep:
            store.remove(gone)
            swept = store.sweep()
    if as_json:
        print_json({**_facts(made.backup), "written_bytes": made.written_bytes, "removed": gone})
        return
    emit(f"{made.backup.name}\n")
    remark(
        f"{_count(len(made.backup.topics), 'topic')}, {_count(made.backup.offsets, 'offset')}, "
        f"{human_size(made.backup.size_bytes)}; {human_size(made.written_bytes)} of them are new"
    )
    if swept is None:
        remark("note: another run may be writing, so objects that no backup refers to stay until the next run")
    if gone or swept:
        what = f"{_count(len(gone), 'older backup')} and {_count(swept or 0, 'object')}"
        remark(f"removed {what} that no backup refers to")


@click.command("list")
@_from_option
@as_json_option
def list_backups(url: str, as_json: bool) -> None:
    """List the backups in a store, oldest first; a damaged root is named."""
    from millstream.config.forms import human_size
    from millstream.errors import Corruption

    found: list[Backup] = []
    damaged: list[str] = []
    with _store(url) as store:
        for name in store.names():
            try:
                found.append(store.read(name))
            except Corruption as error:
                damaged.append(error.message)
    if as_json:
        print_json({"backups": [_facts(one) for one in found], "damaged": damaged})
    else:
        print_table(
            ["NAME", "#TOPICS", "#PARTITIONS", "#GROUPS", "#USERS", "#BYTES", "RELEASE", "CLUSTER"],
            [
                (
                    one.name,
                    len(one.topics),
                    one.partitions,
                    len(one.groups) + len(one.share_groups),
                    len({user.user for user in one.users}),
                    human_size(one.size_bytes),
                    one.version,
                    one.cluster_id,
                )
                for one in found
            ],
            empty=f"no backup in {url}; 'millstream backup create --to {url}' makes one",
        )
    if damaged:
        raise CommandFailed("; ".join(damaged))


@click.command("verify")
@_name_argument
@_from_option
@as_json_option
def verify(name: str | None, url: str, as_json: bool) -> None:
    """Read every byte of a backup, by default of the newest, and name what is damaged."""
    from millstream.backup.verify import verify as look

    with _store(url) as store:
        backup = _wanted(store, name)
        with progress(show=not as_json) as bar:
            task = bar.add_task(backup.name, total=backup.size_bytes)
            result = look(store, backup, lambda done, _: bar.update(task, completed=done))
    if as_json:
        print_json({**_facts(backup), "objects": result.objects, "batches": result.batches, "faults": result.faults})
    if result.faults:
        for fault in result.faults if not as_json else ():
            emit(f"{fault}\n")
        raise CommandFailed(f"backup {backup.name} is damaged: {_count(len(result.faults), 'fault')}")
    if not as_json:
        remark(
            f"{backup.name} is whole: {_count(result.objects, 'object')}, {_count(result.batches, 'batch', 'batches')}"
        )


@click.command("restore")
@_name_argument
@_from_option
@click.option(
    "--into",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="New data directory of a broker: one is started on it for the time of the restore. Else a running cluster.",
)
@_set_option
@as_json_option
@data_option
@bootstrap_option
@_timeout_option
def restore(
    name: str | None,
    url: str,
    into: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    data: str | None,
    bootstrap: str,
    timeout: float,
) -> None:
    """Restore a backup, by default the newest, into a cluster without topics; again, if it was interrupted."""
    if into is None and settings:
        raise WrongUsage("--set is for the broker that --into starts; a running one has its own settings")
    if into is not None and data is not None:
        raise WrongUsage("give --into for a new data directory, or --data for a broker that runs, not both")
    with _store(url) as store:
        backup = _wanted(store, name)
        if into is not None:
            with _own_broker(into, backup, settings, timeout) as cluster:
                result = _restore(cluster, store, backup, as_json=as_json)
        else:
            with _cluster(data, bootstrap, timeout) as cluster:
                result = _restore(cluster, store, backup, as_json=as_json)
    for note in result.notes:
        remark(f"note: {note}")
    if as_json:
        print_json({**_facts(backup), "aborted_transactions": result.aborted, "notes": result.notes})
        return
    ended = f"; {_count(result.aborted, 'open transaction')} ended as aborted" if result.aborted else ""
    remark(
        f"{backup.name} is restored: {_count(result.topics, 'topic')}, {_count(result.partitions, 'partition')}{ended}"
    )


def _restore(cluster: Cluster, store: BackupStore, backup: Backup, *, as_json: bool, hold: bool = False) -> Restored:
    from millstream.backup.restore import restore as make

    with progress(show=not as_json) as bar:
        task = bar.add_task("restore", total=backup.size_bytes)
        return make(cluster, store, backup, progress=lambda done, _: bar.update(task, completed=done), hold=hold)


@click.command("drill")
@_name_argument
@_from_option
@click.option(
    "--directory",
    type=click.Path(file_okay=False, exists=True),
    metavar="DIR",
    help="Where the temporary data directory is made; by default where temporary files are.",
)
@click.option("--max-age", type=click.FloatRange(min=0), metavar="HOURS", help="Fail if the backup is older than that.")
@_set_option
@as_json_option
@_timeout_option
def drill(
    name: str | None,
    url: str,
    directory: str | None,
    max_age: float | None,
    settings: tuple[str, ...],
    as_json: bool,
    timeout: float,
) -> None:
    """Restore a backup, by default the newest, into a broker of its own, compare everything, and remove it again."""
    from millstream.backup.compare import compare
    from millstream.objects.url import directory_url

    with _store(url) as store:
        backup = _wanted(store, name)
        age_hours = (time.time_ns() // 1_000_000 - backup.began_ms) / _HOUR_MS
        if max_age is not None and age_hours > max_age:
            raise CommandFailed(f"backup {backup.name} is {age_hours:.1f} hours old, --max-age is {max_age:g}")
        place = os.path.abspath(tempfile.mkdtemp(prefix="millstream-drill-", dir=directory))
        objects = f"objects.url={directory_url(os.path.join(place, 'objects'))}"  # shared topics want one that is named
        settings = (objects, *settings)
        try:
            with _own_broker(os.path.join(place, "data"), backup, settings, timeout) as cluster:
                restored = _restore(cluster, store, backup, as_json=as_json, hold=True)
                with progress(show=not as_json) as bar:
                    task = bar.add_task("compare", total=backup.size_bytes)
                    result = compare(
                        cluster, store, backup, restored.shift, lambda done, _: bar.update(task, completed=done)
                    )
        finally:
            shutil.rmtree(place, ignore_errors=True)
    for note in restored.notes:
        remark(f"note: {note}")
    if as_json:
        print_json({**_facts(backup), "batches": result.batches, "differences": result.differences})
    if result.differences:
        for one in result.differences if not as_json else ():
            emit(f"{one}\n")
        raise CommandFailed(f"backup {backup.name} was restored, and {_count(len(result.differences), 'thing')} differ")
    if not as_json:
        remark(f"{backup.name} can be restored: {_count(result.partitions, 'partition')} are the same in every batch")


# -- what they stand on ------------------------------------------------------------------------------------------------


@contextmanager
def _store(url: str) -> Generator[BackupStore]:
    """The store; errors of the block that are not a broker's become sentences."""
    from millstream.backup.store import BackupStore
    from millstream.errors import Corruption, MillstreamError
    from millstream.objects import open_store

    try:
        store = open_store(url)
    except MillstreamError as error:
        raise WrongUsage(error.message) from None
    with closing(store):
        try:
            yield BackupStore(store)
        except Corruption as error:
            raise CommandFailed(error.message) from None
        except MillstreamError as error:
            raise CommandFailed(error.message, error.code.name) from None


@contextmanager
def _cluster(data: str | None, bootstrap: str, timeout_s: float) -> Generator[Cluster]:
    """A running cluster, as the caller; through a broker's socket file with ``data``."""
    from millstream.client.cluster import Cluster
    from millstream.client.security import PLAIN
    from millstream.errors import Unavailable

    place = bootstrap if data is None else os.path.abspath(os.path.join(data, SOCKET_FILE))
    if data is not None and not os.path.exists(place):
        raise CommandFailed(f"there is no {place}: no broker runs on {data}")
    security = identity.security() if data is None else PLAIN
    with Cluster(place, client_id="millstream-backup", timeout_s=timeout_s, security=security) as cluster:
        try:
            cluster.metadata_once([])
        except Unavailable as error:
            raise explain_error(error, "the cluster", bootstrap) from None
        yield cluster


@contextmanager
def _own_broker(directory: str, backup: Backup, settings: tuple[str, ...], timeout_s: float) -> Generator[Cluster]:
    """A broker on a data directory, on loopback, for the time of the block. The caller reaches it through its socket
    file. Access is controlled if the backup has rights, so that it takes them.
    """
    from millstream.cli.broker_child import BrokerChild

    os.makedirs(directory, exist_ok=True)
    if os.path.exists(os.path.join(directory, SOCKET_FILE)) and _is_served(directory):
        raise CommandFailed(f"a broker runs on {directory}: stop it, or restore into it with --data {directory}")
    arguments = ["--data", directory, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    for setting in (*((_AUTHORIZER,) if backup.acls else ()), *settings):
        arguments += ["--set", setting]
    with (
        closing(BrokerChild(arguments, directory, max(timeout_s, _START_S), _LOG)),
        _cluster(directory, "", timeout_s) as cluster,
    ):
        yield cluster


_START_S: Final = 60.0


def _is_served(directory: str) -> bool:
    from millstream.client.connection import Connection
    from millstream.errors import MillstreamError

    try:
        Connection(os.path.abspath(os.path.join(directory, SOCKET_FILE)), 0, timeout_s=1.0).close()
    except MillstreamError:
        return False
    return True


def _wanted(store: BackupStore, name: str | None) -> Backup:
    found = store.read(name) if name is not None else store.newest()
    if found is None:
        raise CommandFailed(f"{store.url} has no backup; 'millstream backup create --to {store.url}' makes one")
    return found


def _facts(backup: Backup) -> dict[str, Any]:
    """What JSON says of a backup; no verifier is in it."""
    return {
        "name": backup.name,
        "cluster_id": backup.cluster_id,
        "version": backup.version,
        "began_ms": backup.began_ms,
        "ended_ms": backup.ended_ms,
        "topics": len(backup.topics),
        "partitions": backup.partitions,
        "offsets": backup.offsets,
        "bytes": backup.size_bytes,
        "groups": len(backup.groups),
        "share_groups": len(backup.share_groups),
        "users": sorted({one.user for one in backup.users}),
        "acls": len(backup.acls),
        "quotas": len(backup.quotas),
        "notes": list(backup.notes),
    }


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number:,} {one}" if number == 1 else f"{number:,} {several or one + 's'}"
