"""Counters, gauges and histograms are shown as they were counted."""

import os

import pytest

from millstream.iobuf import Arena, MemoryClass
from millstream.telemetry.metrics import StatsSlab
from millstream.telemetry.node import node_samples
from millstream.telemetry.render import reference, render
from millstream.telemetry.table import ASKED, METRICS, Kind


def lines_of(page, name):
    return [line for line in page.decode().splitlines() if line.startswith(name)]


def test_counters_and_gauges_of_all_processes_are_summed_per_shard():
    shard, writer, other = StatsSlab(0, "shard"), StatsSlab(0, "writer"), StatsSlab(1, "shard")
    shard.counter("wal_ticks").inc(3)
    writer.counter("wal_ticks").inc()
    other.counter("wal_ticks").inc(7)
    other.gauge("net_connections").set(5)
    page = render([shard, writer, other])
    assert lines_of(page, "millstream_wal_ticks_total") == [
        'millstream_wal_ticks_total{shard="0"} 4',
        'millstream_wal_ticks_total{shard="1"} 7',
    ]
    assert 'millstream_net_connections{shard="1"} 5' in lines_of(page, "millstream_net_connections")


def test_a_metric_without_shards_is_one_number():
    slabs = [StatsSlab(0, "shard"), StatsSlab(1, "shard")]
    for slab in slabs:
        slab.counter("kafka_produce_bytes").inc(1000)
    assert lines_of(render(slabs), "millstream_kafka_produce_bytes") == ["millstream_kafka_produce_bytes_total 2000"]


def test_a_counter_is_there_before_its_first_event():
    """Prometheus sees no increase of a series that begins with it."""
    page = render([StatsSlab(), StatsSlab(0, "shard")])
    assert 'millstream_storage_faults_total{kind="corruption"} 0' in lines_of(page, "millstream_storage_faults_total")
    assert lines_of(page, "millstream_wal_sync_latency_seconds") == [], "but a histogram is many lines"


def test_a_histogram_counts_by_power_of_two_and_shows_seconds():
    slab = StatsSlab(0, "shard")
    latency = slab.histogram("kafka_request_latency", api="Produce")
    for value in (0, 15, 16, 300, 5_000_000_000):
        latency.observe(value)
    assert latency.count == 5
    assert latency.sum == 5_000_000_331
    assert latency.quantile(0.5) == 32
    page = render([slab])
    name = "millstream_kafka_request_latency_seconds"
    assert f'{name}_bucket{{api="Produce",le="0.000016"}} 2' in lines_of(page, name)
    assert f'{name}_bucket{{api="Produce",le="0.000032"}} 3' in lines_of(page, name)
    assert f'{name}_bucket{{api="Produce",le="0.000512"}} 4' in lines_of(page, name)
    assert f'{name}_bucket{{api="Produce",le="+Inf"}} 5' in lines_of(page, name)
    assert f'{name}_count{{api="Produce"}} 5' in lines_of(page, name)
    assert not [line for line in lines_of(page, name) if 'api="Fetch"' in line], "an API nobody called is not shown"


def test_a_histogram_of_counts_shows_whole_bounds_that_include_their_value():
    slab = StatsSlab(0, "writer")
    slab.histogram("wal_tick_records").observe(7)
    slab.histogram("wal_tick_records").observe(8)
    page = render([slab])
    assert 'millstream_wal_tick_records_bucket{le="7"} 1' in lines_of(page, "millstream_wal_tick_records")
    assert 'millstream_wal_tick_records_bucket{le="15"} 2' in lines_of(page, "millstream_wal_tick_records")


@pytest.mark.parametrize(
    "bind",
    [
        lambda s: s.counter("no_such_metric"),
        lambda s: s.counter("net_connections"),
        lambda s: s.histogram("kafka_request_latency"),
        lambda s: s.histogram("kafka_request_latency", api="MadeUp"),
        lambda s: s.histogram("kafka_request_latency", topic="Produce"),
        lambda s: s.counter("wal_ticks", api="Produce"),
    ],
)
def test_what_is_not_declared_cannot_be_counted(bind):
    with pytest.raises(KeyError):
        bind(StatsSlab())


def test_no_two_metrics_share_a_cell():
    slab = StatsSlab()
    written = 0
    for metric in METRICS:
        for value in metric.label.values if metric.label else ("",):
            width = 33 if metric.kind is Kind.HISTOGRAM else 1
            first = slab.cell(metric, value)
            assert not any(slab.cells[first : first + width]), f"{metric.name} overlaps another"
            for cell in range(first, first + width):
                slab.cells[cell] = 1
            written += width
    assert sum(slab.cells) == written


def test_every_metric_has_a_valid_and_unique_exposed_name():
    names = [metric.exposed_name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric, name in zip(METRICS, names, strict=True):
        assert name.replace("_", "").isalnum()
        assert metric.doc.endswith(".")
        assert f"`{name}`" in reference()


def test_memory_is_shown_by_class_from_the_arenas():
    arena = Arena.create(1, 1 << 20)
    arena.allocate(512)
    arena.reserve(MemoryClass.FETCH, 1000)
    page = render([], [arena])
    assert 'millstream_memory_in_use_bytes{shard="1"} 512' in lines_of(page, "millstream_memory_in_use_bytes")
    assert 'millstream_memory_reserved_bytes{shard="1",class="fetch"} 1000' in lines_of(page, "millstream_memory_res")
    arena.unreserve(MemoryClass.FETCH, 1000)


def test_another_process_counts_and_this_one_reads():
    slab = StatsSlab(0, "writer")
    pid = os.fork()
    if pid == 0:
        slab.started()
        slab.counter("wal_records").inc(41)
        os._exit(0)
    os.waitpid(pid, 0)
    assert slab.pid == pid
    assert slab.counter("wal_records").value == 41


def test_processes_show_their_cpu_time_and_dead_ones_are_left_out():
    alive, dead = StatsSlab(0, "shard"), StatsSlab(1, "shard")
    alive.started()
    dead.cells[0] = 2**22 + 1  # above any pid
    page = render([alive, dead])
    (cpu,) = lines_of(page, "millstream_process_cpu_seconds_total{")
    assert cpu.startswith('millstream_process_cpu_seconds_total{process="shard-0"} ')


def test_what_the_node_knows_is_shown_as_declared(tmp_path):
    alive = StatsSlab(0, "shard")
    alive.started()
    page = render([alive], node=node_samples("/", "1.0"))
    for metric in ASKED:
        labels = {"process": 'process="shard-0"', "version": 'version="1.0"'}
        wanted = f"{{{labels[metric.label.name]}}}" if metric.label is not None else ""
        (line,) = lines_of(page, f"{metric.exposed_name}{wanted} ")
        assert float(line.rsplit(" ", 1)[1]) > 0 or metric.name == "process_cpu"
    assert b"millstream_storage_free_bytes" not in render([alive], node=node_samples(str(tmp_path / "missing"), "1.0"))


def test_every_line_of_the_page_is_a_comment_or_a_sample():
    slab = StatsSlab(0, "shard")
    slab.histogram("gc_pause", generation="2").observe(100)
    for line in render([slab], [Arena.create(0, 1 << 20)], node_samples("/", "1.0")).decode().splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2
        if not line.startswith("# "):
            float(line.rsplit(" ", 1)[1])


def test_requests_of_all_apis_are_added_up_per_shard():
    slabs = [StatsSlab(0, "shard"), StatsSlab(1, "shard"), StatsSlab()]
    for shard, api, time_us in ((0, "Produce", 100), (0, "Fetch", 300), (1, "Produce", 50)):
        slabs[shard].histogram("kafka_request_latency", api=api).observe(time_us)
    lines = render(slabs).decode().splitlines()
    assert 'millstream_kafka_requests_total{shard="0"} 2' in lines
    assert 'millstream_kafka_requests_total{shard="1"} 1' in lines
    assert 'millstream_kafka_request_time_seconds_total{shard="0"} 0.0004' in lines
