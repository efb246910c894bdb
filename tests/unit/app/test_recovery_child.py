"""Recovery in its child process: what the operator reads when it cannot be done."""

import errno
import os
from pathlib import Path

import pytest

from millstream.app.recovery import RecoveryChild
from millstream.config.settings import Settings
from millstream.errors import Unavailable
from millstream.storage.disk import SystemDisk


class BrokenDisk(SystemDisk):
    """Lists nothing."""

    def list(self, directory: str) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), directory)


def test_a_disk_that_fails_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unavailable, match="could not be recovered"):
        RecoveryChild(Settings(shards=1, data_dir=str(tmp_path)), BrokenDisk()).wait()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].endswith(f"recovery failed: [Errno 5] Input/output error: '{tmp_path}/wal'")
