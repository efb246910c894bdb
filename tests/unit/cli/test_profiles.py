"""Profiles keep any value, and where nobody has a home directory there are none."""

import pwd

import pytest

from millstream.cli import identity


@pytest.fixture
def homeless(monkeypatch):
    def unknown(_):
        raise KeyError("uid not found")

    for name in ("HOME", "XDG_CONFIG_HOME", "MILLSTREAM_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_a_user_without_a_home_directory_has_no_profiles(homeless):
    assert str(identity.profiles_directory()) == "/.config/millstream/profiles"
    assert identity.current_profile() is None


@pytest.mark.parametrize("value", ["a\\b", "-----BEGIN\nline\r\n", " blanks ", "#=!:", "\\", "é\t"])
def test_a_value_comes_back_as_it_was(monkeypatch, tmp_path, value):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    identity.write_profile("office", {"bootstrap.servers": "b:9092", "sasl.password": value})
    assert identity.read_profile("office") == {"bootstrap.servers": "b:9092", "sasl.password": value}


def test_a_file_that_names_no_profile_in_words_is_an_unknown_profile(monkeypatch, tmp_path, millstream):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    identity.write_profile("office", {"bootstrap.servers": "b:9092"})
    (identity.profiles_directory() / "current").write_bytes(b"\xff\xfe")
    run = millstream("topic", "list")
    assert (run.code, run.err.startswith("error: "), "fault in millstream" in run.err) == (2, True, False)
