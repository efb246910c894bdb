"""The audit's files are followed through renames; what was removed before is said; a reused inode is no trap."""

import os

from millstream.app.audit_file import FILE
from millstream.app.audit_topic import Position, next_lines

FIRST = Position(0, 0)


def line(number):
    return b'{"time":"2026-11-29T10:00:%02d.000Z","kind":"login","number":%d}' % (number % 60, number)


def write(directory, numbers, name=FILE):
    with open(directory / name, "ab") as file:
        file.writelines(line(number) + b"\n" for number in numbers)


def rotate(directory, files=2):
    for number in range(files - 1, -1, -1):
        path = directory / (f"{FILE}.{number}" if number else FILE)
        if path.exists():
            os.rename(path, directory / f"{FILE}.{number + 1}")


def copied(directory, at=FIRST, files=2):
    """All lines from a position on, the position behind them, and how often something was lost."""
    lines, losses = [], 0
    while (found := next_lines(str(directory), at, files)) is not None:
        lines += found.lines
        losses += found.lost
        assert found.after != at
        at = found.after
    return lines, at, losses


def test_lines_are_copied_once_and_in_order_through_renames(tmp_path):
    assert copied(tmp_path) == ([], FIRST, 0)
    write(tmp_path, range(5))
    lines, at, losses = copied(tmp_path)
    assert (lines, losses) == ([line(number) for number in range(5)], 0)
    write(tmp_path, range(5, 8))
    rotate(tmp_path)
    write(tmp_path, range(8, 10))
    rotate(tmp_path)
    write(tmp_path, range(10, 12))
    lines, at, losses = copied(tmp_path, at)
    assert (lines, losses) == ([line(number) for number in range(5, 12)], 0)
    assert copied(tmp_path, at) == ([], at, 0)


def test_a_line_that_is_being_written_is_left_for_the_next_look(tmp_path):
    write(tmp_path, [0])
    with open(tmp_path / FILE, "ab") as file:
        file.write(line(1)[:20])
    lines, at, _ = copied(tmp_path)
    assert lines == [line(0)]
    with open(tmp_path / FILE, "ab") as file:
        file.write(line(1)[20:] + b"\n")
    assert copied(tmp_path, at)[0] == [line(1)]


def test_removed_files_are_said_once_and_the_rest_is_copied(tmp_path):
    write(tmp_path, range(3))
    _, at, _ = copied(tmp_path)
    for number in range(10, 14):
        rotate(tmp_path)
        write(tmp_path, [number])
    lines, at, losses = copied(tmp_path, at)
    assert (lines, losses) == ([line(number) for number in (11, 12, 13)], 1)
    assert copied(tmp_path, at) == ([], at, 0)


def test_another_file_with_the_inode_of_a_removed_one_is_read_from_its_start(tmp_path):
    write(tmp_path, range(3))
    _, at, _ = copied(tmp_path)
    (tmp_path / FILE).write_bytes(b"")  # the same inode
    write(tmp_path, range(20, 30))
    lines, _, losses = copied(tmp_path, at)
    assert (lines, losses) == ([line(number) for number in range(20, 30)], 1)


def test_many_records_come_in_several_pieces(tmp_path):
    write(tmp_path, range(10_000))
    assert copied(tmp_path)[0] == [line(number) for number in range(10_000)]
