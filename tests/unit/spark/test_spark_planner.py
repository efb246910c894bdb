"""Planning is arithmetic: every offset in exactly one task, limits kept, sizes right, the same input the same tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.spark.planner import (
    MAX_TASKS,
    Segment,
    Span,
    SplitCounts,
    SplitRules,
    admit_bytes,
    admit_rows,
    count_splits,
    cut,
    locate,
    span_bytes,
)

MIB = 1 << 20


def span(start, end, partition=0):
    return Span("t", "id", partition, start, end)


def files(*edges, row_bytes=100):
    return [Segment(low, high, (high - low) * row_bytes, f"/{low}.log") for low, high in edges]


SPANS = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**9)), max_size=30).map(
    lambda items: [span(start, start + rows, i) for i, (start, rows) in enumerate(items)]
)


def test_bytes_of_whole_segments_of_parts_and_of_what_no_segment_holds():
    held = files((0, 100), (100, 200))
    assert span_bytes(span(0, 200), held) == 20_000
    assert span_bytes(span(50, 150), held) == 10_000
    assert span_bytes(span(150, 300), held) == 5_000 + 100 * 100
    assert span_bytes(span(0, 10), ()) == 10 * 512


@given(SPANS, st.integers(1, 10**10))
def test_admitted_offsets_keep_to_the_limit_and_leave_no_partition_out(spans, limit):
    chosen = admit_rows(spans, limit)
    assert sum(s.rows for s in chosen) <= max(limit, 0) + len([s for s in spans if s.rows])
    for before, after in zip(spans, chosen, strict=True):
        assert before.start == after.start
        assert (after.rows > 0) == (before.rows > 0)
        assert after.end <= before.end


def test_admitted_offsets_are_shared_out_by_how_much_there_is():
    chosen = admit_rows([span(0, 900), span(500, 600, 1)], 100)
    assert [s.rows for s in chosen] == [90, 10]


def test_admitted_bytes_follow_the_sizes_of_segments():
    spans = [span(0, 1000), span(0, 1000, 1)]
    held = [files((0, 500), row_bytes=1000) + files((500, 1000), row_bytes=10), files((0, 1000), row_bytes=10)]
    chosen = admit_bytes(spans, held, 255_000)
    sizes = [span_bytes(s, f) for s, f in zip(chosen, held, strict=True)]
    assert sum(sizes) == pytest.approx(255_000, rel=0.02)
    assert chosen[0].rows == pytest.approx(250, abs=3)


@given(SPANS, st.integers(1, 10**9))
def test_admitted_bytes_leave_no_partition_out(spans, limit):
    chosen = admit_bytes(spans, [() for _ in spans], limit)
    for before, after in zip(spans, chosen, strict=True):
        assert before.start <= after.end <= before.end
        assert (after.rows > 0) == (before.rows > 0)


@given(SPANS, st.integers(1, 10**11), st.none() | st.integers(1, 200), st.none() | st.integers(10**6, 10**9))
def test_every_offset_is_in_exactly_one_task(spans, split_bytes, min_partitions, max_records):
    sizes = [s.rows * 100 for s in spans]
    counts = count_splits(spans, sizes, SplitRules(split_bytes, min_partitions, max_records))
    tasks = cut(spans, counts)
    assert len(tasks) <= MAX_TASKS * 1.1 + len(spans) + (min_partitions or 0) + sum(
        s.rows // max_records + 1 for s in spans if max_records
    )
    seen = {}
    for task in tasks:
        for part in task:
            assert part.rows > 0
            seen.setdefault(part.partition, []).append((part.start, part.end))
    for whole in spans:
        edges = sorted(seen.get(whole.partition, []))
        at = whole.start
        for low, high in edges:
            assert low == at
            at = high
        assert at == whole.end
    assert cut(spans, counts) == tasks


def test_a_large_partition_is_cut_by_size():
    counts = count_splits([span(0, 10_000)], [1000 * MIB], SplitRules(128 * MIB))
    assert counts == SplitCounts((8,), 0)


def test_small_partitions_share_tasks():
    spans = [span(0, 10, i) for i in range(500)]
    counts = count_splits(spans, [1000] * 500, SplitRules(128 * MIB))
    assert counts.bundles == 1
    assert len(cut(spans, counts)) == 1
    counts = count_splits(spans, [MIB] * 500, SplitRules(128 * MIB))
    tasks = cut(spans, counts)
    assert len(tasks) == 16
    assert {len(task) for task in tasks} <= {31, 32}


def test_at_least_so_many_tasks():
    spans = [span(0, 900), span(0, 100, 1)]
    tasks = cut(spans, count_splits(spans, [1000, 100], SplitRules(128 * MIB, min_partitions=10)))
    assert len(tasks) == 10


def test_no_more_records_in_a_task():
    tasks = cut([span(0, 1001)], count_splits([span(0, 1001)], [10], SplitRules(128 * MIB, max_records=100)))
    assert len(tasks) == 11
    assert max(part.rows for task in tasks for part in task) <= 100


def test_a_split_is_never_empty_when_there_are_fewer_records_than_splits():
    tasks = cut([span(0, 3)], count_splits([span(0, 3)], [10 * MIB], SplitRules(MIB)))
    assert [part.rows for (part,) in tasks] == [1, 1, 1]


def test_the_files_that_overlap_are_named_with_a_task():
    held = {("id", 0): files((0, 100), (100, 200), (200, 300))}
    assert [f.base_offset for f in locate(span(150, 200), held).segments] == [100]
    assert [f.base_offset for f in locate(span(99, 201), held).segments] == [0, 100, 200]
    assert locate(span(0, 10, 1), held).segments == ()
