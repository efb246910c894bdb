"""The state of a write-ahead log: which of its frames are void. Two files hold the same content.

::

    wal/<shard>/state.copy   replaced first  ┐ both are durable before a void frame is overwritten, and before
               /state        replaced next   ┘ a start after an orderly stop serves clients

A frame also names what was void when it was written, but later checkpoints void more. Replay of a void frame does harm:
if the log has grown since on another shard, or was compacted, replay would cut off what follows the frame's last
record. The state is therefore kept twice, and ``read_wal_state`` takes the newer one of those that verify.

A crash leaves each file old or new, never half (``replace_file`` has the same order). Both are correct: until both are
new, no frame that the new state voids is overwritten, and replay of such a frame repeats what the previous checkpoint
asked for. If one file is damaged or unreadable, the other one has the same content, or that of one crash earlier. If
both are damaged, unreadable or missing while there are log files, ``read_wal_state`` raises ``Corruption``, and the
broker does not start: nothing says which frames are void. A directory without log files has no frames, and every state
is right for it. A failed write raises OSError.
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
    """Content of the two files."""

    state: WalState | None
    """The newer of those that verify; None if neither does."""

    damaged: dict[str, str]
    """Path → reason, of files that do not verify or cannot be read."""

    missing: tuple[str, ...]
    """Paths of missing files. Directories of early versions have no copy."""


def look_at_wal_state(disk: Disk, directory: str) -> KnownState:
    """Read both files of a directory. Damage and read errors are in the result."""
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
    """Error text for a directory with log files and without a readable state."""
    reasons = [f"{path}: {reason}" for path, reason in known.damaged.items()]
    reasons += [f"{path} is missing" for path in known.missing]
    return (
        f"nothing says which frames in {directory} are in the segments already ({'; '.join(reasons)});"
        " to replay them all could cut off what was acknowledged later"
    )


def read_wal_state(disk: Disk, directory: str) -> tuple[WalState, dict[str, str]]:
    """Read the state, and the damaged files (path → reason). The caller writes both files again.

    Raises:
        Corruption: neither file can be read, and the directory has log files.
    """
    known = look_at_wal_state(disk, directory)
    if known.state is None and any(parse_wal_name(name) is not None for name in disk.list(directory)):
        raise Corruption(nothing_is_known(directory, known))
    return known.state or WalState(), known.damaged


def write_wal_state(disk: Disk, directory: str, state: WalState | bytes) -> None:
    """Replace both files, durably. Raises OSError; each file is then either the old one or the new one."""
    data = encode_wal_state(state) if isinstance(state, WalState) else state
    paths = (f"{directory}/{STATE_COPY_FILE}", f"{directory}/{STATE_FILE}")
    for path in paths:
        write_aside(disk, path, data)
    for path in paths:
        disk.rename(path + TEMPORARY_SUFFIX, path)
    disk.sync_directory(directory)
