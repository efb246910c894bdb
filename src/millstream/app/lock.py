"""One broker per data directory: an ``flock`` that every process of the broker inherits.

The open file holds the lock, so the lock ends with the last process of the broker, however it ends. The file has the
supervisor's process id, for the error of a second broker.
"""

import fcntl
import os
from typing import Final

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

LOCK_FILE: Final = "lock"


def was_locked(data_dir: str) -> bool:
    """Whether a broker has ever used the directory."""
    return os.path.exists(os.path.join(data_dir, LOCK_FILE))


def lock_data_dir(data_dir: str) -> int:
    """Take the lock and return its descriptor, which must stay open.

    Raises:
        Rejected: another broker has the directory; the message has its process id.
    """
    os.makedirs(data_dir, exist_ok=True)
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
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
