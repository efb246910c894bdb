"""The bench of the warm cache: what its model of another cache keeps, what it concludes, what it draws."""

import itertools
import json
import uuid

import pytest
from bench import archive_load, raw, slow_store, warm_arm, warm_fanout, warm_plots
from bench.archive_load import Beside, History
from bench.warm_arm import Arm, Result
from bench.warm_hooks import UNREAD_S, UnreadOnly

from millstream.format.manifest import ArchiveId
from millstream.model.quantities import Offset
from millstream.tiers.reading import BlockKey

OWNER = ArchiveId(uuid.UUID(int=1), 0)
OTHER = ArchiveId(uuid.UUID(int=1), 1)
CHECKSUM = 5


def block(base, records=4):
    data = bytearray(raw.batch([b"v"] * records))
    data[:8] = base.to_bytes(8, "big")
    return BlockKey(OWNER, Offset(base), CHECKSUM), memoryview(bytes(data))


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def unread(clock):
    blocks = UnreadOnly(10_000, lambda: clock[0])
    for base in (0, 4, 8):
        blocks.put(*block(base))
    return blocks


def kept(blocks):
    return [base for base in (0, 4, 8) if blocks.get(BlockKey(OWNER, Offset(base), CHECKSUM)) is not None]


def test_a_block_leaves_the_unread_ones_when_a_reader_has_passed_its_end(unread):
    unread.passed(OWNER, Offset(0), Offset(3))
    assert kept(unread) == [0, 4, 8], "its last record is not read"
    unread.passed(OTHER, Offset(0), Offset(12))
    assert kept(unread) == [0, 4, 8], "that was another partition"
    unread.passed(OWNER, Offset(3), Offset(9))
    assert kept(unread) == [8]
    unread.put(*block(0))
    assert kept(unread) == [0, 8]


def test_an_unread_block_leaves_after_a_minute(unread, clock):
    clock[0] = UNREAD_S / 2
    unread.put(*block(4))
    clock[0] = UNREAD_S
    assert kept(unread) == [4]


def test_each_record_has_a_place_of_its_own_without_gaps():
    places = sorted(map(warm_arm.place, range(warm_arm.RUN * warm_arm.PARTITIONS * 3)))
    per_partition = itertools.product(range(warm_arm.PARTITIONS), range(warm_arm.RUN * 3))
    assert places == list(per_partition)


def test_percentiles_are_of_what_was_measured():
    assert warm_arm.percentile([], 99) == 0
    assert warm_arm.percentile([1.0, 2.0, 3.0, 4.0], 50) == 2
    assert warm_arm.percentile([float(i) for i in range(1, 101)], 99) == 99


def test_bare_reads_read_whole_slots_of_the_file(tmp_path):
    path = tmp_path / "shard-0"
    path.write_bytes(bytes(3 * warm_arm.SLOT_BYTES))
    found = warm_arm.bare_reads(str(path), direct=False, count=5)
    assert len(found) == 5
    assert found == sorted(found)
    path.write_bytes(b"")
    assert warm_arm.bare_reads(str(path), direct=False) == []


def result(**given):
    figures = dict.fromkeys(Result._fields, 1.0) | {"hit_ms": [0.5, 1.0]} | given
    return Result(**figures)


RESULTS = {
    warm_fanout.ONE: [result(gets_per_mib=1.0, hit_ms=[])],
    warm_fanout.OFF: [result(gets_per_mib=3.0, hit_ms=[])],
    "nvme, lru": [result(gets_per_mib=2.0, hit_p99_ms=3.5), result(gets_per_mib=2.2, hit_p99_ms=3.5)],
    warm_fanout.ALL_FIT: [result(gets_per_mib=1.05, hit_p99_ms=2.5)],
}
BESIDES = [
    Beside(tiered, 1.0, p99_ms, 4.0, 9.0, 50.0, 0, [(25.0, 0.5), (50.0, 1.0), (99.0, p99_ms), (100.0, 9.0)])
    for tiered, p99_ms in ((False, 2.0), (True, 2.2))
]


def test_each_goal_is_met_or_missed_by_what_was_measured():
    lines = "\n".join(warm_fanout.verdicts(RESULTS, BESIDES, History(50.0, 80.0, 90.0, 2.0, 2.5)))
    assert "p99 of a hit, nvme, lru (bare preadv: 1.00 ms): 3.50 ms, goal ≤ 3 ms: missed" in lines
    assert f"p99 of a hit, {warm_fanout.ALL_FIT} (bare preadv: 1.00 ms): 2.50 ms, goal ≤ 3 ms: met" in lines
    assert "to those of one, no cache: 3.00\n" in lines
    assert f"to those of one, {warm_fanout.ALL_FIT}: 1.05, goal ≤ 1.1: met" in lines
    assert "produce p99 to that without a cache, nvme, lru: 1.00, goal ≤ 1.05: met" in lines
    assert "produce p99 with the archiver on, to that with it off: 1.10, goal ≤ 1.05: missed" in lines
    assert "80 MiB/s" in lines
    assert warm_fanout.verdicts({}, [], None) == []
    (without,) = warm_fanout.verdicts({"nvme, lru": [result(hit_p99_ms=0.0)]}, [], None)
    assert "nothing was read from the cache" in without


def test_the_table_has_a_row_an_arm_with_the_middle_of_its_runs():
    header, rule, *rows = warm_fanout.table(RESULTS)
    assert {line.count("|") for line in (header, rule, *rows)} == {header.count("|")}
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in RESULTS]
    assert "| nvme, lru | 2 | 2.20 |" in rows[2], "of two runs the worse one"


def test_a_plot_is_drawn_of_whatever_was_measured(tmp_path):
    assert warm_plots.draw({}, [], tmp_path) == []
    paths = warm_plots.draw(RESULTS, BESIDES, tmp_path)
    assert len(paths) == 3
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_recorded_trace_is_replayed_with_every_policy(tmp_path):
    path = tmp_path / "trace.txt"
    rows = [
        (kind, 1000 * i + 10 * reader, reader, 0, i - 5 * reader + offset, 1000 * (i - 5 * reader))
        for i in range(20)
        for reader in (0, 1)
        for kind, offset in (("read", 0), ("at", 1))
    ]
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows if row[4] >= 0), encoding="ascii")
    header, _, *lines = warm_fanout.replay(path)
    assert "interval" in header
    assert len(lines) == len(warm_fanout.SLOTS)
    assert all("%" in line for line in lines)


def test_the_whole_bench_writes_its_table_and_plots_into_the_docs(monkeypatch, tmp_path, capsys):
    docs, out = tmp_path / "docs", tmp_path / "out"
    (docs / "images").mkdir(parents=True)
    page = docs / "performance.md"
    page.write_text(f"# Figures\n\n{warm_fanout.BEGIN}\nold\n{warm_fanout.END}\n\nThe rest.\n", encoding="utf-8")

    def run(arm, seconds, io):
        if arm.name == "nvme, lru":
            raise raw.UnexpectedAnswer("the machine is too slow")
        return result(hit_ms=[] if "cache" in arm.name else [0.5, 1.0])

    monkeypatch.setattr(warm_arm, "run", run)
    monkeypatch.setattr(archive_load, "beside", lambda seconds, rounds: BESIDES)
    monkeypatch.setattr(archive_load, "history", lambda seconds: History(50.0, 80.0, 90.0, 2.0, 2.5))
    monkeypatch.setattr(warm_fanout, "DOCS", docs)
    monkeypatch.setattr(warm_fanout, "_failed", [])
    monkeypatch.setattr("sys.argv", ["warm_fanout", "--write-docs", "--out", str(out)])
    warm_fanout.main()
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert text.startswith("# Figures")
    assert text.endswith("The rest.\n")
    for wanted in ("python -m bench.warm_fanout --write-docs", "| nvme, interval | 1 |", "tiered topic |", "80 MiB/s"):
        assert wanted in text
    for name in ("warm-requests", "warm-latency", "warm-producers"):
        assert f"](images/{name}.png)" in text
        assert (docs / "images" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "summary.md").exists()
    assert "nvme, lru" not in json.loads((out / "results.json").read_text())["arms"]
    assert "Without a figure: nvme, lru" in capsys.readouterr().out


def test_arms_are_run_only_if_their_name_is_asked_for(monkeypatch):
    ran = []
    monkeypatch.setattr(warm_arm, "run", lambda arm, seconds, io: ran.append((arm.name, seconds, io)) or result())
    monkeypatch.setattr("sys.argv", ["warm_fanout", "--arms", "nvme, lru", "--repeats", "2", "--seconds", "3"])
    found = warm_fanout._run_arms(warm_fanout._options())
    assert ran == [("nvme, lru", 3.0, "direct")] * 2
    assert len(found["nvme, lru"]) == 2
    assert {arm.name for arm in warm_fanout.ARMS if arm.repeats} == {"no cache", "nvme, lru", "nvme, interval"}
    assert all(isinstance(arm, Arm) for arm in warm_fanout.ARMS)


def test_a_slow_store_answers_with_what_the_store_has_and_takes_its_time(monkeypatch):
    slept = []
    monkeypatch.setattr(slow_store.time, "sleep", slept.append)

    class Store:
        url = "memory://"

        def get(self, key, start, end):
            return memoryview(bytes(range(start, end)))

        def put_stream(self, key, parts):
            return b"".join(parts)

    store = slow_store.SlowStore(Store())
    assert store.url == "memory://"
    assert bytes(store.get("k", 3, 6)) == bytes([3, 4, 5])
    assert store.put_stream("k", [b"ab", b"c"]) == b"abc"
    assert len(slept) == 2 + 1 + 2, "each request waits, and the bytes of a read and of each part of an upload"
    assert all(one > 0 for one in slept)


def test_the_page_of_figures_has_a_place_for_them():
    text = (warm_fanout.DOCS / "performance.md").read_text(encoding="utf-8")
    assert 0 < text.index(warm_fanout.BEGIN) < text.index(warm_fanout.END)


def piece(base, records=16, partition=3):
    """A batch as the producer of the arms makes it, at an offset of a partition."""
    run = base // warm_arm.RUN
    first = (run * warm_arm.PARTITIONS + partition) * warm_arm.RUN
    values = [(first + number).to_bytes(8, "big") + bytes(8) for number in range(records)]
    data = bytearray(raw.batch(values, timestamp_ms=1_000 + base))
    data[:8] = base.to_bytes(8, "big")
    return bytes(data)


def test_a_group_takes_whole_batches_that_are_in_their_place():
    data = memoryview(piece(32) + piece(48) + piece(64)[:50])
    first, second = warm_arm._batches(data)
    assert warm_arm._checked(first, 3, 32) == (48, 1_032)
    assert warm_arm._checked(second, 3, 48) == (64, 1_048)


@pytest.mark.parametrize(
    ("batch", "partition", "expected"),
    [(piece(32), 3, 48), (piece(48), 3, 32), (piece(32), 4, 32), (piece(32)[:-1] + b"x", 3, 32)],
)
def test_a_group_that_reads_anything_else_ends_the_bench(batch, partition, expected):
    with pytest.raises(raw.UnexpectedAnswer):
        warm_arm._checked(memoryview(batch), partition, expected)
