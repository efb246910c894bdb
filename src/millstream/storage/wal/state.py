"""The state of a write-ahead log, in two files that say the same: which of its frames are void is nowhere else.

::

    wal/<shard>/state.copy   replaced first  ┐ both durable before a frame that they make void is overwritten,
               /state        replaced next   ┘ before anything is served from what an orderly stop left

Frames name what is void, too, but only as far as was known when they were written. Replaying a void frame is not
harmless: where its log has grown since on another shard, or was compacted, what stands behind the frame's last record
would be cut away. So the file is kept twice, and `read_wal_state` takes the newer one of those that verify.

A crash at any point leaves each file old or new, never half (`replace_file`'s way), and either is good: while one is
old, nothing that the new one makes void was overwritten, and replaying it once more is what the checkpoint before
would have asked for. One file damaged, or refused by the disk: the other one says the same, or is one crash behind.
Both damaged, refused or gone, though there are files of the write-ahead log: `Corruption`, and nothing is started,
because nobody can tell what is void. A directory without such files has no frames, and any state is right. An OSError
of a write is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.errors import Corruption
from millstream.format.names import STATE_COPY_FILE, STATE_FILE, TEMPORARY_SUFFIX, parse_wal_name
from millstream.format.wal import WalState, decode_wal_state, encode_wal_state
from millstream.storage.disk import read_file, write_aside

if TYPE_CHECKING:
    from millstream.storage.disk import Disk


class KnownState(NamedTuple):
    """What the two files say."""

    state: WalState | None
    """None: there is neither."""

    damaged: dict[str, str]
    """Files that do not verify, or cannot be read, and why."""

    missing: tuple[str, ...]
    """Files that are not there. One made before there was a copy has none."""


def look_at_wal_state(disk: Disk, directory: str) -> KnownState:
    """Both files of a directory, whatever they hold."""
    found: list[WalState] = []
    damaged: dict[str, str] = {}
    missing: list[str] = []
    for name in (STATE_FILE, STATE_COPY_FILE):
        path = f"{directory}/{name}"
        try:
            found.append(decode_wal_state(read_file(disk, path)))
        except FileNotFoundError:
            missing.append(path)
        except Corruption as error:
            damaged[path] = error.message
        except OSError as error:
            damaged[path] = f"could not be read: {error.strerror}"
    return KnownState(max(found, key=lambda one: one.age, default=None), damaged, tuple(missing))


def nothing_is_known(directory: str, known: KnownState) -> str:
    """What there is to say when neither file can be read, though there are files of the write-ahead log."""
    reasons = [f"{path}: {reason}" for path, reason in known.damaged.items()]
    reasons += [f"{path} is missing" for path in known.missing]
    return (
        f"nothing says which frames in {directory} are in the segments already ({'; '.join(reasons)});"
        " to replay them all could cut off what was acknowledged later"
    )


def read_wal_state(disk: Disk, directory: str) -> tuple[WalState, dict[str, str]]:
    """The state, and which of its files are damaged and why; the caller writes both anew.

    Raises:
        Corruption: neither file can be read, and there are frames that may or may not be void.
    """
    known = look_at_wal_state(disk, directory)
    if known.state is None and any(parse_wal_name(name) is not None for name in disk.list(directory)):
        raise Corruption(nothing_is_known(directory, known))
    return known.state or WalState(), known.damaged


def write_wal_state(disk: Disk, directory: str, state: WalState | bytes) -> None:
    """Replace both files, durably. Raises OSError: each is the old one or the new one."""
    data = encode_wal_state(state) if isinstance(state, WalState) else state
    paths = (f"{directory}/{STATE_COPY_FILE}", f"{directory}/{STATE_FILE}")
    for path in paths:
        write_aside(disk, path, data)
    for path in paths:
        disk.rename(path + TEMPORARY_SUFFIX, path)
    disk.sync_directory(directory)
