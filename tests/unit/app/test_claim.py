"""What a broker takes for itself before it starts: its ports and its data directory."""

import os
import socket

import pytest

from millstream.app.claim import claim
from millstream.config.settings import Settings
from millstream.errors import Rejected, Unavailable


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def settings(data, listen="127.0.0.1:0", http="127.0.0.1:0"):
    return Settings(data_dir=str(data), listen=listen, http_listen=http)


def give_back(claimed):
    for listener in (*claimed.listeners.values(), claimed.http):
        listener.close()
    os.close(claimed.lock)


def test_a_start_that_finds_a_port_taken_leaves_no_directory(tmp_path, taken):
    for given in ({"listen": taken}, {"http": taken}):
        with pytest.raises(Unavailable, match=f"cannot listen on {taken}"):
            claim(settings(tmp_path / "data", **given))
        assert not (tmp_path / "data").exists()


def test_a_directory_in_use_is_named_before_a_port_in_use(tmp_path, taken):
    claimed = claim(settings(tmp_path / "data"))
    try:
        with pytest.raises(Rejected, match=f"in use by another broker \\(process {os.getpid()}\\)"):
            claim(settings(tmp_path / "data", listen=taken))
    finally:
        give_back(claimed)
    give_back(claim(settings(tmp_path / "data")))


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(Unavailable, match=r"cannot start on .*data: it is a file; name a directory"):
        claim(settings(tmp_path / "data"))
