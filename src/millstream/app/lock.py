"""One broker per data directory: an ``flock`` that every process of the broker inherits.

The open file holds the lock, so the lock ends with the last process of the broker, however it ends. The file has the
supervisor's process id, for the error of a second broker.

The directory is for the broker's user alone (mode 0700), because it holds every topic's records. One that others may
enter is closed, with a line in the log. Where it belongs to another user that cannot be done: the line says so, and the
broker starts.
"""

import fcntl
import os
import stat
from typing import Final

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.telemetry.log import log

LOCK_FILE: Final = "lock"
DIRECTORY_MODE: Final = 0o700


def was_locked(data_dir: str) -> bool:
    """Whether a broker has ever used the directory."""
    return os.path.exists(os.path.join(data_dir, LOCK_FILE))


def lock_data_dir(data_dir: str) -> int:
    """Take the lock and return its descriptor, which must stay open.

    Raises:
        Rejected: another broker has the directory; the message has its process id.
    """
    os.makedirs(data_dir, mode=DIRECTORY_MODE, exist_ok=True)
    path = os.path.join(data_dir, LOCK_FILE)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise Rejected(
            f"the data directory {data_dir} is in use by another broker (process {holder}); "
            "stop it or choose another --data",
            ErrorCode.LOG_DIR_NOT_FOUND,
        ) from None
    _close_to_others(data_dir)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _close_to_others(data_dir: str) -> None:
    """Let only the broker's user enter the directory. Never raises: a broker starts with the mode that it finds."""
    mode = stat.S_IMODE(os.stat(data_dir).st_mode)
    if not mode & 0o077:
        return
    try:
        os.chmod(data_dir, DIRECTORY_MODE)
    except OSError as error:
        log.warning(
            "the data directory %s has mode %04o, so that other users may read it, and cannot be closed (%s); run "
            "chmod 0700 on it as its owner",
            data_dir,
            mode,
            (error.strerror or str(error)).lower(),
        )
    else:
        log.info("the data directory %s had mode %04o; it has 0700 now, for this user alone", data_dir, mode)
