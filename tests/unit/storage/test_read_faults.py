"""Damage that readers find again and again is counted each time and told once."""

import re

from millstream.storage.segments.read_faults import AGAIN_S, ReadFaults
from millstream.telemetry.metrics import StatsSlab


def test_one_damage_is_one_line_until_it_is_told_again(capfd):
    clock = [1000.0]
    stats = StatsSlab(0, "shard")
    faults = ReadFaults(stats, now=lambda: clock[0])

    def told():
        return re.findall(r"ERROR (.*)$", capfd.readouterr().err, re.MULTILINE)

    for _ in range(50):
        faults.corrupt("t/0", "F", 3, "F: the batch at byte 7, offset 3, does not match its checksum")
        clock[0] += 1
    assert told() == ["[t/0] corrupt: F: the batch at byte 7, offset 3, does not match its checksum"]
    faults.failed("t/0", "/d/F", 5)
    faults.corrupt("t/1", "F", 3, "F: the batch at byte 7, offset 3, does not match its checksum")
    assert told() == [
        "[t/0] /d/F could not be read: Input/output error",
        "[t/1] corrupt: F: the batch at byte 7, offset 3, does not match its checksum",
    ]
    clock[0] += AGAIN_S
    faults.failed("t/0", "/d/F", 5)
    assert len(told()) == 1
    assert stats.counter("storage_faults", kind="corruption").value == 51
    assert stats.counter("storage_faults", kind="read_error").value == 2


def test_many_damages_are_a_few_lines_and_a_count(capfd):
    clock = [0.0]
    faults = ReadFaults(StatsSlab(0, "shard"), now=lambda: clock[0])
    for number in range(2000):
        faults.corrupt("t/0", "F", -1, f"F{number}")
    assert capfd.readouterr().err.count("\n") == 10
    clock[0] += 60
    faults.corrupt("t/0", "F", -1, "F")
    assert "(and 1990 more like it)" in capfd.readouterr().err
