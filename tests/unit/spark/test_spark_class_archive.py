"""The archive of Spark's classes: used when it is whole, left alone when it is not, made once."""

import fcntl
import os

import pytest

pytest.importorskip("pyspark")

from millstream.spark import class_archive, java, spark_session
from millstream.spark.class_archive import Archive, archive_for, archive_options, is_whole, make, remove_unused

DAY_S = 86_400


class Machine:
    """A Java, a Spark with a jar, and an empty cache."""

    def __init__(self, place):
        self.cache = place / "cache" / "millstream"
        self.java_home = place / "java"
        self.spark = place / "spark"
        (self.spark / "jars").mkdir(parents=True)
        (self.spark / "jars" / "spark-core.jar").write_bytes(b"jar")
        (self.java_home / "bin").mkdir(parents=True)
        self.set_java("17.0.15")

    def set_java(self, version):
        script = self.java_home / "bin" / "java"
        script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        script.chmod(0o755)
        java.java_version_text.cache_clear()

    def archive(self):
        return archive_for(str(self.java_home))

    def options(self):
        return archive_options(str(self.java_home))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    found = Machine(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(class_archive.SETTING, raising=False)
    monkeypatch.setattr(class_archive, "_spark_home", lambda: found.spark)
    yield found
    java.java_version_text.cache_clear()


@pytest.fixture
def classes(monkeypatch):
    """What a run of a session stores; None if the session fails."""
    stored = {"bytes": b"classes" * 1000, "runs": 0}

    def run(options, new):
        stored["runs"] += 1
        assert str(new) in options
        if stored["bytes"] is None:
            return "the session ended with status 1: no memory"
        new.write_bytes(stored["bytes"])
        return None

    monkeypatch.setattr(class_archive, "_run", run)
    return stored


def test_an_archive_is_mapped_once_it_is_made(machine, classes):
    assert machine.options() == ""
    assert make(machine.archive()) is None
    assert str(machine.archive().path) in machine.options()


@pytest.mark.parametrize(("version", "option"), [("17.0.15", "-XX:SharedArchiveFile="), ("25.0.2", "-XX:AOTCache=")])
def test_each_java_is_told_in_its_own_words(machine, classes, version, option):
    machine.set_java(version)
    make(machine.archive())
    assert option in machine.options()


@pytest.mark.parametrize("damage", ["cut", "flipped", "no checksum"])
def test_a_damaged_archive_is_not_mapped_and_is_made_anew(machine, classes, damage):
    archive = machine.archive() or pytest.fail("no archive")
    make(archive)
    if damage == "cut":
        os.truncate(archive.path, 100)
    elif damage == "flipped":
        archive.path.write_bytes(b"Classes" + classes["bytes"][7:])
    else:
        archive.checksum_path.unlink()
    assert machine.options() == ""
    assert not archive.path.exists()
    make(archive)
    assert is_whole(archive)


def test_another_java_build_or_another_jar_has_another_archive(machine):
    first = machine.archive()
    machine.set_java("17.0.16")
    second = machine.archive()
    (machine.spark / "jars" / "more.jar").write_bytes(b"jar")
    assert len({first.path, second.path, machine.archive().path}) == 3


def test_what_cannot_be_made_leaves_nothing(machine, classes):
    classes["bytes"] = None
    archive = machine.archive()
    assert "no memory" in make(archive)
    assert machine.options() == ""
    assert [path.name for path in machine.cache.glob("*.new")] == []


def test_it_is_made_by_one_process_at_a_time(machine, classes):
    archive = machine.archive()
    with open(archive.path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert make(archive) == "another process makes it"
    assert make(archive) is None
    assert make(archive) is None
    assert classes["runs"] == 1


@pytest.mark.parametrize("word", ["off", "0", "False"])
def test_the_setting_turns_it_off(machine, classes, monkeypatch, word):
    make(machine.archive())
    monkeypatch.setenv(class_archive.SETTING, word)
    assert machine.options() == ""


def test_a_directory_that_others_may_write_is_not_used(machine):
    machine.cache.mkdir(parents=True)
    machine.cache.chmod(0o777)
    assert machine.archive() is None
    assert machine.options() == ""


def test_a_cache_that_cannot_be_made_costs_nothing_but_the_archive(machine):
    machine.cache.parent.write_text("a file where the directory would be")
    assert machine.options() == ""


def test_archives_that_no_session_uses_are_removed(machine, classes, tmp_path):
    archive = machine.archive()
    make(archive)
    old = Archive(archive.path.with_name("spark-classes-0.jsa"), 17)
    for path in (old.path, old.checksum_path):
        path.write_bytes(b"x")
        os.utime(path, (0, 31 * DAY_S))
    other = archive.path.with_name("java-usr-lib")
    other.write_bytes(b"x")
    os.utime(other, (0, 0))
    os.utime(archive.checksum_path, (0, 31 * DAY_S))  # the archive itself was used since
    used_s = archive.path.stat().st_mtime
    remove_unused(machine.cache, used_s + DAY_S)
    assert is_whole(archive)
    assert not old.path.exists()
    assert not old.checksum_path.exists()
    assert other.exists()
    remove_unused(machine.cache, used_s + 31 * DAY_S)
    assert not archive.path.exists()


def test_options_hold_for_the_start_alone_and_the_users_come_last(monkeypatch):
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Duser=1")
    with spark_session.submit_options("-XX:Ours"):
        assert os.environ["SPARK_SUBMIT_OPTS"] == "-XX:Ours -Duser=1"
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Duser=1"
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    with spark_session.submit_options("-XX:Ours"):
        assert os.environ["SPARK_SUBMIT_OPTS"] == "-XX:Ours"
    assert "SPARK_SUBMIT_OPTS" not in os.environ


def test_a_program_that_runs_for_long_has_the_archive_made_beside_its_work(tmp_path, monkeypatch):
    archive = Archive(tmp_path / "spark-classes-x.aot", 25)
    started = []

    class Process:
        pid = 1 << 30

        def __init__(self, command, **options):
            started.append(command)

        def poll(self):
            return 0

    monkeypatch.delenv(class_archive.SETTING, raising=False)
    monkeypatch.setattr(class_archive.subprocess, "Popen", Process)
    monkeypatch.setattr(class_archive, "find_java_home", lambda: "java")
    monkeypatch.setattr(class_archive, "archive_for", lambda home: archive)
    with class_archive.made_meanwhile():
        assert started[0][:3] == ["nice", "-n", "19"] and started[0][-1] == "millstream.spark.class_archive"
    monkeypatch.setattr(class_archive, "is_whole", lambda found: True)
    with class_archive.made_meanwhile():
        assert len(started) == 1, "there is one"
    monkeypatch.setattr(class_archive, "is_whole", lambda found: False)
    monkeypatch.setenv(class_archive.SETTING, "off")
    with class_archive.made_meanwhile():
        assert len(started) == 1, "none is wanted"


def test_a_maker_that_is_not_done_ends_with_its_program(tmp_path, monkeypatch):
    monkeypatch.delenv(class_archive.SETTING, raising=False)
    monkeypatch.setattr(class_archive, "find_java_home", lambda: "java")
    monkeypatch.setattr(class_archive, "archive_for", lambda home: Archive(tmp_path / "spark-classes-x.aot", 25))
    popen, made = class_archive.subprocess.Popen, []

    def sleeping(command, **options):
        made.append(popen(["sleep", "600"], **options))
        return made[0]

    monkeypatch.setattr(class_archive.subprocess, "Popen", sleeping)
    with class_archive.made_meanwhile():
        assert made[0].poll() is None
    assert made[0].poll() is not None
