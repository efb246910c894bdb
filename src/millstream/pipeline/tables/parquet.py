"""A directory of Parquet files without a table format, for readers that know nothing else.

::

    <path>/millstream_batch=<name>/part-….parquet   one directory a batch, a partition to Hive-style readers
    <path>/_millstream_staging/…                    files of batches that are not committed yet
    <path>/_millstream_staging/<writer>/<epoch>/    what the run that has claimed the directory commits

A batch becomes visible by the rename of its directory, which carries the record too: it is there whole or not at all,
and a repeated one finds it. That needs a rename that is atomic, so the path is on a file system of this machine or a
shared disk, not in an object store. Files are never merged, because no reader could be kept from seeing rows twice
until then; a Delta or Iceberg table does that, and is what to prefer.

Files that are not committed have names that no pattern such as ``<path>/*/*.parquet`` finds: engines that expand
patterns do not leave out directories with an underscore, and would read rows twice after a crash.

A run commits from a directory of its epoch, and a later run's claim is the rename of that directory: from then on the
older run's rename finds nothing.
"""

import datetime as dt
import glob
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import Rejected
from millstream.pipeline.changes import Changes
from millstream.pipeline.files import WrittenFile
from millstream.pipeline.layout import Rules, with_rules
from millstream.pipeline.locations import Location
from millstream.pipeline.tables.columns import require_columns
from millstream.pipeline.tables.guard import Moved, require_own, set_back
from millstream.pipeline.tables.table import CommitRecord, RecordOffsets, incompatible

_STAGING: Final = "_millstream_staging"
_KEYS: Final = ("millstream_batch", "batch")
"""Keys of the directories. The second is that of tables that were started by earlier versions; they keep it."""
_RECORD: Final = "_record.json"
_STAGED: Final = ".staged"
"""At the end of the name of a file that is not committed."""
_CLAIM: Final = "claim.json"
_OTHERS: Final = {
    "_delta_log": "a Delta table",
    "_spark_metadata": "the log of a Spark query",
    ".hoodie": "a Hudi table",
}
"""What a directory is whose readers see the files alone that its log names."""
_LEFT_S: Final = 7 * 86_400
"""Age at which a staged file is of no batch: none takes that long."""


class ParquetTable:
    """Batches of Parquet files in a directory."""

    def __init__(self, location: Location) -> None:
        if not location.is_local:
            raise Rejected(
                f"{location.address}: plain Parquet needs a rename that is atomic, which object stores lack; "
                "write to a Delta table there"
            )
        self._root = location

    @property
    def location(self) -> Location:
        return self._root / _STAGING

    key: tuple[str, ...] = ()

    def exists(self) -> bool:
        return bool(self._batches())

    def inspect(self, schema: Any | None) -> None:
        for log, what in _OTHERS.items():
            if os.path.exists(os.path.join(self._root.address, log)):
                raise Rejected(f"{self.shown} has become {what} ({log}), whose readers would not see these files")
        if schema is None:
            return
        require_columns(self.shown, schema)
        taken = [name for name in schema.names if name.lower() == self._key]
        if taken:
            raise Rejected(
                f"column {taken[0]} has the name of the directories' key, which readers would show in its place; give "
                "it another name in the query"
            )
        before = self.columns()
        by_case = {} if before is None else {field.name.lower(): field for field in before}
        differences = [
            f"column {field.name} is {field.type}, in the files {known.name} is {known.type}"
            for field in schema
            if (known := by_case.get(field.name.lower())) and (known.name, known.type) != (field.name, field.type)
        ]
        if differences:
            raise Rejected(incompatible(self.shown, differences))

    def columns(self) -> Any:
        """Those of all batches, because a batch may have no rows, or fewer columns than an earlier one."""
        found: dict[str, Any] = {}
        for batch in sorted(self._batches(), key=lambda path: os.stat(path).st_mtime_ns, reverse=True):
            file = next((name for name in os.listdir(batch) if name.endswith(".parquet")), None)
            for field in [] if file is None else pq.read_schema(os.path.join(batch, file)):
                found.setdefault(field.name, field)
        return pa.schema(found.values()) if found else None

    def prepare(self, schema: Any) -> Any:
        self.inspect(schema)
        self.location.make()
        return with_rules(schema, Rules(ending=f".parquet{_STAGED}"))

    @property
    def shown(self) -> str:
        return f"Parquet directory {self._root.address}"

    def guard(self, owner: str) -> CommitRecord | None:
        claimed = self._claimed(owner)
        last = self.last(owner)
        if claimed is None:
            return last
        return claimed if last is None else msgspec.structs.replace(last, epoch=claimed.epoch, writer=claimed.writer)

    def standing(self, owner: str) -> CommitRecord | None:
        return self.guard(owner)  # a batch that is not there has no record

    def claim(self, record: CommitRecord, after: CommitRecord | None) -> None:
        claims = self._claims(record.owner)
        claims.make()
        epochs = self._epochs(record.owner)
        found = max(epochs, default=0)
        # Without a claim the staging directory was removed, and the batches alone have an epoch.
        if epochs and found != (after.epoch if after is not None else 0):
            raise Moved("another run has claimed the directory at the same time")
        place, text = os.path.join(claims.address, str(record.epoch)), msgspec.json.encode(record)
        made = claims / f"new-{uuid.uuid4().hex}"
        try:
            # The rename takes the directory away that an older run commits from; of several, one succeeds. It has a
            # claim from the first moment on: a directory without one would be no run's.
            if not found:
                made.make()
                made.write(_CLAIM, text, sync=True)
            os.rename(os.path.join(claims.address, str(found)) if found else made.address, place)
        except OSError as error:
            made.remove()
            raise Moved(f"another run has claimed the directory at the same time ({error.strerror})") from error
        for left in glob.glob(f"{glob.escape(place)}/batch-*"):  # of an older run, which can no longer commit it
            shutil.rmtree(left)
        (claims / str(record.epoch)).write(_CLAIM, text, sync=True)
        self._remove_left()

    def _remove_left(self) -> None:
        """Remove what tasks of runs that ended have left. A file that is younger may be of a batch at work."""
        before_s = time.time() - _LEFT_S
        for entry in os.scandir(self.location.address):
            if entry.is_file() and entry.stat().st_mtime < before_s:
                os.remove(entry.path)

    def last(self, owner: str) -> CommitRecord | None:
        found = [record for record in map(_record, self._batches()) if record is not None and record.owner == owner]
        # Batches without a row change no total; among equals the later number counts.
        return max(
            found,
            key=lambda record: (record.epoch, record.total_rows + record.total_rejected, record.batch),
            default=None,
        )

    def committed(self, owner: str, query: str) -> int | None:
        found = [record for record in map(_record, self._batches()) if record is not None and record.owner == owner]
        return max((record.batch for record in found if record.query == query), default=None)

    def commit(self, record: CommitRecord, files: list[WrittenFile], after: CommitRecord | None = None) -> str:
        require_own(self.shown, self._claimed(record.owner), record)
        if after is not None and after.begun and self.committed(after.owner, after.query) != after.batch:
            raise set_back(self.shown, after, self.last(record.owner))
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{record.sink}-{record.query}-{record.batch:08d}")
        claim = self._claims(record.owner) / str(record.epoch)
        if after is None:
            claim.make()  # of dead letters: their writer's claim is in the other table
        prepared = claim / f"batch-{name}"
        # Not with the directories above it: a later claim has renamed them, which must end this commit.
        try:
            os.mkdir(prepared.address)
        except FileExistsError:
            pass
        except FileNotFoundError:
            if self._epochs(record.owner):
                raise
            raise Rejected(
                f"{self.shown}: another program has removed {_STAGING} while this run writes; start the pipeline again"
            ) from None
        wanted = {file.path.removesuffix(_STAGED) for file in files}
        for left in os.listdir(prepared.address):
            if left not in wanted:
                os.remove(os.path.join(prepared.address, left))
        for file in files:
            found = self._place_of(file)
            if found is not None:  # the table's own row says so otherwise
                os.replace(found, os.path.join(prepared.address, file.path.removesuffix(_STAGED)))
        prepared.write(_RECORD, msgspec.json.encode(record))
        os.rename(prepared.address, os.path.join(self._root.address, f"{self._key}={name}"))
        return self.version()

    def lacking(self, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        return [file for file in files if self._place_of(file) is None]

    def _place_of(self, file: WrittenFile) -> str | None:
        """Where a file of a batch is: where a task has left it, or where a run that ended has prepared the batch."""
        staging, name = glob.escape(self.location.address), glob.escape(file.path.removesuffix(_STAGED))
        places = [os.path.join(self.location.address, file.path), *glob.glob(f"{staging}/*/*/batch-*/{name}")]
        return next(filter(os.path.exists, places), None)

    def _claims(self, owner: str) -> Location:
        return self.location / owner

    def _epochs(self, owner: str) -> list[int]:
        try:
            names = filter(str.isdecimal, os.listdir(self._claims(owner).address))
        except FileNotFoundError:
            return []
        return [int(name) for name in names if (self._claims(owner) / name).has(_CLAIM)]

    def _claimed(self, owner: str) -> CommitRecord | None:
        """The last claim; None without one."""
        epochs = self._epochs(owner)
        if not epochs:
            return None
        try:
            claim = msgspec.json.decode((self._claims(owner) / str(max(epochs))).read(_CLAIM), type=CommitRecord)
        except FileNotFoundError:
            return None
        return msgspec.structs.replace(claim, epoch=max(epochs), query="", batch=-1, offsets="")

    def merge(self, record: CommitRecord, changes: Callable[[], Changes], after: CommitRecord | None = None) -> str:  # noqa: ARG002
        raise Rejected(f"{self._root.address}: rows of a plain Parquet directory are not replaced")

    def later(self, changes: Changes) -> Any:  # noqa: ARG002 (of all tables)
        raise Rejected(f"{self._root.address}: the rows of a plain Parquet directory are not read back")

    def scan(self) -> Iterator[Any]:
        raise Rejected(f"{self._root.address}: the rows of a plain Parquet directory are not read back")

    def remove(self, record: CommitRecord, record_offsets: RecordOffsets) -> None:  # noqa: ARG002 (of all tables)
        raise Rejected(f"{self._root.address}: single rows cannot leave a plain Parquet directory")

    def forget(self, record: CommitRecord, column: str, before: dt.datetime) -> bool:  # noqa: ARG002 (of all tables)
        raise Rejected(f"{self._root.address}: single rows cannot leave a plain Parquet directory")

    def before(self, owner: str, batch: int) -> Iterator[tuple[CommitRecord, Iterator[Any]]]:  # noqa: ARG002 (of all tables)
        return iter(())

    def drop(self) -> None:
        self._root.remove()

    def version(self) -> str:
        return f"{len(self._batches())} batches"

    def compact(self) -> int:
        return 0

    def expire(self, keep_days: float) -> int:  # noqa: ARG002 (of all tables)
        return 0

    def _batches(self) -> list[str]:
        try:
            entries = os.listdir(self._root.address)
        except FileNotFoundError:
            return []
        return [os.path.join(self._root.address, entry) for entry in entries if entry.partition("=")[0] in _KEYS]

    @property
    def _key(self) -> str:
        """The key of this table's directories."""
        found = {os.path.basename(batch).partition("=")[0] for batch in self._batches()}
        return next((key for key in reversed(_KEYS) if key in found), _KEYS[0])


def _record(batch: str) -> CommitRecord | None:
    try:
        with open(os.path.join(batch, _RECORD), "rb") as file:
            return msgspec.json.decode(file.read(), type=CommitRecord)
    except FileNotFoundError:
        return None  # put there by others
