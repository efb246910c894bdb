"""Settings are written once, survive a restart of the machine, and are taken back byte for byte, even after a crash."""

import json

import pytest
from machines import build, contents

from millstream.cli.application import run_application
from millstream.cli.failure import WrongUsage
from millstream.errors import Rejected
from millstream.tune import applying
from millstream.tune.checks import look
from millstream.tune.finding import Outcome


def files(root):
    return {name: content for name, content in contents(root).items() if not name.endswith("before.json")}


@pytest.mark.parametrize("name", ["recorded", "nvme", "cloud-kvm", "cloud-xen", "container", "laptop"])
def test_apply_again_changes_nothing_and_undo_restores_every_byte(name, tmp_path):
    facts = build(name, tmp_path)
    before = files(tmp_path)
    applied = applying.apply(facts, look(facts), advice=True)
    after = files(tmp_path)
    assert after != before
    changed = {one.name for one in applied if one.seen.outcome is Outcome.APPLIED}
    assert changed == {one.name for one in applying.to_apply(look(build(name, tmp_path / "other")), advice=True)}
    assert not applying.to_apply(look(facts), advice=True), "everything that can be written is good now"
    applying.apply(facts, look(facts), advice=True)
    assert files(tmp_path / "proc") == {k[5:]: v for k, v in after.items() if k.startswith("proc/")}
    applying.undo(facts)
    left = {k: v for k, v in files(tmp_path).items() if not k.startswith("other/")}
    assert left == before
    assert applying.undo(facts) == []


def test_advice_is_left_alone_unless_it_is_wanted(tmp_path):
    facts = build("nvme", tmp_path)
    applied = applying.apply(facts, look(facts), advice=False)
    assert {one.name for one in applied if one.seen.outcome is Outcome.APPLIED} == {
        "clocksource",
        "swappiness",
        "numa_balancing",
    }
    assert (tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text() == "powersave\n"


def test_settings_last(tmp_path):
    facts = build("nvme", tmp_path)
    applying.apply(facts, look(facts), advice=True)
    assert "vm.swappiness = 1\n" in (tmp_path / applying.SYSCTL_FILE).read_text()
    assert (tmp_path / applying.UNIT_LINK).resolve() == (tmp_path / applying.UNIT_FILE).resolve()
    assert "tune --apply --all" in (tmp_path / applying.UNIT_FILE).read_text()
    # A later run that finds one more setting off keeps those of the first.
    (tmp_path / "proc/sys/net/core/somaxconn").write_text("128\n")
    applying.apply(facts, look(facts), advice=True)
    body = (tmp_path / applying.SYSCTL_FILE).read_text()
    assert "net.core.somaxconn = 4096\n" in body
    assert "vm.swappiness = 1\n" in body


def test_a_machine_without_systemd_gets_no_unit(tmp_path):
    facts = build("cloud-xen", tmp_path)
    applying.apply(facts, look(facts), advice=True)
    assert not (tmp_path / "etc/systemd").exists()


class Crash(BaseException):
    """The process ends here."""


def ends_at(step, real):
    """``real`` until it was called ``step[0]`` times."""

    def call(*arguments, **named):
        if step[0] == 0:
            raise Crash
        step[0] -= 1
        return real(*arguments, **named)

    return call


def test_a_crash_at_any_write_leaves_an_undo_that_works(tmp_path, monkeypatch):
    finished, writes = False, 0
    while not finished:
        root = tmp_path / str(writes)
        facts = build("nvme", root)
        before = files(root)
        step = [writes]
        with monkeypatch.context() as patch:
            for name in ("_write", "_replace"):
                patch.setattr(applying, name, ends_at(step, getattr(applying, name)))
            try:
                applying.apply(facts, look(facts), advice=True)
                finished = True
            except Crash:
                writes += 1
        applying.undo(facts)
        assert files(root) == before, f"crash at write {writes}"
    assert writes > 10


def test_a_crash_of_an_undo_leaves_an_undo_that_works(tmp_path, monkeypatch):
    facts = build("nvme", tmp_path)
    before = files(tmp_path)
    applying.apply(facts, look(facts), advice=True)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(applying, "_write", ends_at([3], applying._write))
        applying.undo(facts)
    applying.undo(facts)
    assert files(tmp_path) == before


def test_a_file_that_the_kernel_refuses_is_not_possible_and_the_others_are_set(tmp_path, monkeypatch):
    facts = build("nvme", tmp_path)
    real = applying._write

    def refuse(path, text):
        if "clocksource" in path:
            raise OSError(22, "Invalid argument")
        real(path, text)

    monkeypatch.setattr(applying, "_write", refuse)
    applied = {one.name: one.seen for one in applying.apply(facts, look(facts), advice=False)}
    assert applied["clocksource"].outcome is Outcome.IMPOSSIBLE
    assert "refuses tsc: invalid argument" in applied["clocksource"].reason
    assert applied["swappiness"].outcome is Outcome.APPLIED


def test_an_undo_does_what_it_can_and_can_be_repeated(tmp_path, monkeypatch):
    facts = build("nvme", tmp_path)
    before = files(tmp_path)
    real = applying._write

    def refuse(path, text):
        if "clocksource" in path:
            raise OSError(5, "Input/output error")
        real(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(applying, "_write", refuse)
        applying.apply(facts, look(facts), advice=True)
        assert applying.undo(facts), "what was refused needs no undo"
    assert files(tmp_path) == before
    applying.apply(facts, look(facts), advice=True)
    with monkeypatch.context() as patch:
        patch.setattr(applying, "_write", refuse)
        with pytest.raises(OSError, match="clocksource"):
            applying.undo(facts)
    assert {name for name, content in files(tmp_path).items() if before.get(name) != content} == {
        "sys/devices/system/clocksource/clocksource0/current_clocksource"
    }
    applying.undo(facts)
    assert files(tmp_path) == before


def test_a_torn_note_is_an_error_and_nothing_is_written(tmp_path):
    facts = build("nvme", tmp_path)
    (tmp_path / "var/lib/millstream-tune").mkdir(parents=True)
    (tmp_path / applying.NOTE).write_text("[{")
    before = files(tmp_path)
    with pytest.raises(Rejected, match=r"before\.json"):
        applying.apply(facts, look(facts), advice=True)
    with pytest.raises(Rejected, match=r"before\.json"):
        applying.undo(facts)
    assert files(tmp_path) == before


def test_the_choice_in_brackets_is_what_the_kernel_takes_back():
    assert applying._word("always within_size advise [never] deny force\n") == "never\n"
    assert applying._word("60\n") == "60\n"


def test_the_command_by_its_options(tmp_path, capsys):
    build("nvme", tmp_path)
    before = files(tmp_path)
    assert run_application(["tune", "--root", str(tmp_path), "--json"]) == 0
    shown = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert shown["swappiness"]["outcome"] == "off"
    assert shown["swappiness"]["writes"] == [{"path": "/proc/sys/vm/swappiness", "text": "1\n"}]
    assert run_application(["tune", "--root", str(tmp_path), "--script", "--all"]) == 0
    assert "echo '1' > '/proc/sys/vm/swappiness'\n" in capsys.readouterr().out
    assert files(tmp_path) == before, "neither of them writes"
    assert run_application(["tune", "--root", str(tmp_path), "--apply"]) == 0
    assert "applied" in capsys.readouterr().out
    assert (tmp_path / "proc/sys/vm/swappiness").read_text() == "1\n"
    assert run_application(["tune", "--root", str(tmp_path), "--undo"]) == 0
    assert files(tmp_path) == before
    with pytest.raises(WrongUsage, match="exclude each other"):
        run_application(["tune", "--apply", "--undo"])
