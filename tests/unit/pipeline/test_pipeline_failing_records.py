"""Records on which a query fails are found by halves."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import Rejected
from millstream.pipeline import failing_records as module
from millstream.pipeline.failing_records import (
    Order,
    Span,
    failing_records,
    give_order,
    is_of_data,
    order_of,
    reason_of,
)
from millstream.pipeline.locations import Location


def query(failing, jobs):
    """A query that fails on these records, by topic, partition and offset."""

    def why(spans):
        jobs.append(spans)
        found = [
            (span.topic, span.partition, offset)
            for span in spans
            for offset in range(span.start, span.end)
            if (span.topic, span.partition, offset) in failing
        ]
        return f"{found[0]}" if found else None

    return why


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), min_size=1, max_size=4),
    st.sets(st.integers(0, 119), min_size=1, max_size=6),
)
def test_failing_records_are_found_wherever_they_are(lengths, chosen):
    spans = [Span("t", number, start, start + length) for number, (start, length) in enumerate(lengths)]
    places = [(span.topic, span.partition, offset) for span in spans for offset in range(span.start, span.end)]
    failing = {places[index] for index in chosen if index < len(places)}
    jobs = []
    if not failing:
        return
    found = failing_records(spans, query(failing, jobs))
    assert {(span.topic, span.partition, span.start) for span in found} == failing
    assert all(reason == f"{(span.topic, span.partition, span.start)}" for span, reason in found.items())
    assert len(jobs) <= len(failing) * 2 * 8


def test_one_of_many_costs_about_a_job_for_each_halving():
    jobs = []
    assert failing_records([Span("t", 0, 0, 1_000_000)], query({("t", 0, 999_999)}, jobs))
    assert len(jobs) <= 21


def test_a_query_that_fails_too_often_is_refused(monkeypatch):
    monkeypatch.setattr(module, "_JOBS", 50)
    jobs = []
    with pytest.raises(Rejected, match=r"fails on \d+ records and more .*: write try_cast"):
        failing_records([Span("t", 0, 0, 1000)], query({("t", 0, offset) for offset in range(1000)}, jobs))
    assert len(jobs) == 50


def test_a_query_that_fails_on_no_record_alone_is_refused():
    with pytest.raises(Rejected, match="on none of its records alone"):
        failing_records([Span("t", 0, 0, 8)], lambda spans: "sum" if spans[0].end - spans[0].start > 4 else None)


def test_tasks_read_what_they_are_ordered_to(tmp_path):
    records = pa.RecordBatch.from_pydict(
        {"topic": ["t", "t", "t", "u"], "partition": [0, 0, 1, 0], "offset": [4, 5, 5, 5]}
    )
    place = Location(str(tmp_path / "batch"))
    assert order_of(place).chosen(records) is records
    assert order_of(place).faults(records) == {}
    give_order(place, Order((Span("t", 0, 5, 9), Span("u", 0, 0, 6))))
    assert order_of(place).chosen(records).to_pydict()["topic"] == ["t", "u"]
    give_order(place, Order(failing={"t": {1: {5: "why"}}}))
    assert {index: fault.reason for index, fault in order_of(place).faults(records).items()} == {2: "why"}


def test_errors_of_values_are_told_from_others():
    text = "Job aborted: java: [CAST_INVALID_INPUT] The value 'x' is\nmalformed. SQLSTATE: 22018\n== SQL (line 1) ==\n"
    assert is_of_data(RuntimeError(text))
    assert reason_of(RuntimeError(text)) == "[CAST_INVALID_INPUT] The value 'x' is\nmalformed."
    assert not is_of_data(RuntimeError("[UNRESOLVED_COLUMN] SQLSTATE: 42703"))
    assert not is_of_data(RuntimeError("Python worker exited unexpectedly"))
