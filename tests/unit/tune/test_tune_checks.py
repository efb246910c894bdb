"""What the checks say of six machines, and that none of them fails for what a machine lacks."""

import re

import msgspec
import pytest
from machines import BROKER, NAMES, TREES, build

from millstream.tune.checks import CHECKS, look
from millstream.tune.facts import Facts
from millstream.tune.finding import Outcome

RPK = {
    "aio_events",
    "ballast_file",
    "clocksource",
    "coredump",
    "cpu",
    "disk_irq",
    "disk_nomerges",
    "disk_scheduler",
    "disk_write_cache",
    "fstrim",
    "net",
    "swappiness",
    "transparent_hugepages",
}
OFF = {
    "recorded": {"syn_backlog", "nofile"},
    "nvme": {
        "clocksource",
        "cpu",
        "cpu_idle",
        "net_irq",
        "disk_scheduler",
        "fstrim",
        "swappiness",
        "dirty_background_bytes",
        "numa_balancing",
    },
    "cloud-kvm": {"disk_irq", "net_steering", "somaxconn", "syn_backlog"},
    "cloud-xen": {"somaxconn", "nofile", "kernel", "file_system", "clock", "instructions"},
    "container": {"somaxconn", "file_system", "cgroup_memory"},
    "laptop": {
        "cpu",
        "disk_scheduler",
        "fstrim",
        "net_steering",
        "swappiness",
        "syn_backlog",
        "dirty_background_bytes",
        "file_system",
        "clock",
    },
}


def test_there_are_six_machines_and_each_says_where_it_comes_from():
    first = {name: (TREES / f"{name}.txt").read_text().splitlines()[0] for name in NAMES}
    assert sorted(OFF) == NAMES
    assert [name for name, line in first.items() if line.startswith("# Recorded:")] == ["recorded"]
    assert all(re.match("# (Recorded|Written from the kernel's documentation): ", line) for line in first.values())


@pytest.mark.parametrize("name", sorted(OFF))
def test_what_is_off(name, tmp_path):
    findings = look(build(name, tmp_path))
    assert {one.name for one in findings if one.seen.outcome is Outcome.OFF} == OFF[name]
    for one in findings:
        seen = one.seen
        if seen.outcome in (Outcome.IMPOSSIBLE, Outcome.UNNEEDED):
            assert seen.reason, f"{one.name} gives no reason"
        if seen.outcome is Outcome.OFF:
            assert seen.value
            assert seen.wanted
            assert seen.writes or seen.reason, f"{one.name} neither writes nor says what to do"
        for write in seen.writes:
            assert (tmp_path / write.path).is_file(), f"{one.name} would write a file that is not there"


def test_a_machine_without_any_file_is_no_failure(tmp_path):
    for one in look(Facts(str(tmp_path), BROKER)):
        assert one.seen.outcome is not Outcome.OFF or one.name == "clock"
        assert not one.seen.writes


RUBBISH = ("", "\n", "-1", "x y z", "[", "9" * 30, "0-" + "9" * 30, "\x00\ufffd", "Max open files", "flags :")


@pytest.mark.parametrize("name", sorted(OFF))
def test_files_that_make_no_sense_are_no_failure(name, tmp_path):
    facts = build(name, tmp_path)
    files = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    for rubbish in RUBBISH:
        for path in files:
            path.write_text(rubbish)
        assert len(look(facts)) == len(CHECKS), f"all files are {rubbish!r}"
    for path, text in files.items():
        path.write_text(text)
    for number, (path, text) in enumerate(files.items()):
        rubbish = RUBBISH[number % len(RUBBISH)]
        path.write_text(rubbish)
        assert len(look(facts)) == len(CHECKS), f"{path} is {rubbish!r}"
        path.write_text(text)


def test_every_tuner_of_rpk_is_covered():
    assert {name for one in CHECKS for name in one.rpk} == RPK
    assert len({one.name for one in CHECKS}) == len(CHECKS)


def test_what_the_broker_does_decides(tmp_path):
    facts = build("nvme", tmp_path)

    def outcomes(**changes):
        changed = Facts(facts.root, msgspec.structs.replace(BROKER, **changes))
        return {one.name: one.seen.outcome for one in look(changed)}

    assert outcomes()["memlock"] is Outcome.UNNEEDED
    assert outcomes(locks_memory=True)["memlock"] is Outcome.OFF
    assert outcomes(realtime=True)["rtprio"] is Outcome.OFF
    assert outcomes(pinned=False)["numa_arenas"] is Outcome.OFF
    assert outcomes()["numa_arenas"] is Outcome.GOOD
    assert outcomes(optimised=False, openssl=(3, 0))["interpreter"] is Outcome.OFF
    assert outcomes(openssl=(3, 0))["openssl"] is Outcome.OFF
