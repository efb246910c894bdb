"""The data directory: one broker's, and one user's."""

import os
import stat

import pytest

from millstream.app.lock import lock_data_dir
from millstream.errors import Rejected


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_new_directory_is_for_its_user_alone(tmp_path):
    before = os.umask(0)
    try:
        os.close(lock_data_dir(str(tmp_path / "data")))
    finally:
        os.umask(before)
    assert mode(tmp_path / "data") == 0o700


def test_a_directory_that_others_may_enter_is_closed_with_a_line_in_the_log(tmp_path, capfd):
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    for said in ("had mode 0755; it has 0700 now", ""):
        os.close(lock_data_dir(str(data)))
        assert mode(data) == 0o700
        err = capfd.readouterr().err
        assert said in err
        assert bool(said) == bool(err)


def test_a_directory_that_cannot_be_closed_is_used_with_a_warning(tmp_path, capfd, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)

    def refused(path, mode):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refused)
    os.close(lock_data_dir(str(data)))
    err = capfd.readouterr().err
    assert " WARN " in err
    assert "operation not permitted" in err


def test_the_second_broker_of_a_directory_changes_nothing(tmp_path):
    data = tmp_path / "data"
    lock = lock_data_dir(str(data))
    data.chmod(0o750)
    with pytest.raises(Rejected, match=f"process {os.getpid()}"):
        lock_data_dir(str(data))
    assert mode(data) == 0o750
    os.close(lock)
