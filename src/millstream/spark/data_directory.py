"""Whose files these are: a path in a manifest means something only on the disk of the broker that named it.

On another machine the same path may be the disk of another replica. Its files have the same names, and bytes that were
never committed, if that replica has not yet learned who leads. So the manifest of a cluster's broker names the
*incarnation* of its data directory: random digits in ``identity.json``, which no other directory has. A reader opens a
file only where it finds the same digits. A single broker has no such file, and no replica that could be mistaken
for it: the path has the topic's id.
"""

import errno
import json
import os

import msgspec

from millstream.format.names import IDENTITY_FILE


class DataDirectory(msgspec.Struct, frozen=True):
    """The data directory of a broker of a cluster: where that broker has it, and its incarnation."""

    path: str
    incarnation: str


def require_own(directory: DataDirectory | None) -> None:
    """Return if this machine has the directory's files, or if no incarnation tells them apart (None).

    Raises:
        OSError: there is no such directory here, or it is another broker's, or its broker is unknown.
    """
    if directory is None:
        return
    path = os.path.join(directory.path, IDENTITY_FILE)
    with open(path, "rb") as file:
        content = file.read()
    try:
        found: object = json.loads(content)["incarnation"]
    except (ValueError, TypeError, KeyError):
        raise OSError(errno.ESTALE, "does not say which broker's disk this is", path) from None
    if found != directory.incarnation:
        raise OSError(errno.ESTALE, f"is of disk {found}, and the manifest is of disk {directory.incarnation}", path)


def is_own(directory: DataDirectory | None) -> bool:
    """Whether ``require_own`` returns."""
    try:
        require_own(directory)
    except OSError:
        return False
    return True
