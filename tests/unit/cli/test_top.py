"""``millstream top``: what two readings of the metrics say about the time in between."""

import math
import socket
import threading

import msgspec
import pytest

from millstream.cli.exposition import Exposition, quantile, read_exposition
from millstream.cli.top_view import WIDTH, activity, as_document, as_lines

PAGE = """\
# HELP millstream_net_connections Open client connections.
# TYPE millstream_net_connections gauge
millstream_net_connections{{shard="0"}} 3
millstream_net_connections{{shard="1"}} 1
millstream_kafka_requests_total{{shard="0"}} {requests}
millstream_kafka_requests_total{{shard="1"}} 7
millstream_kafka_request_time_seconds_total{{shard="0"}} {busy}
millstream_kafka_request_time_seconds_total{{shard="1"}} 0.5
millstream_kafka_request_latency_seconds_bucket{{api="Produce",le="0.001"}} {fast}
millstream_kafka_request_latency_seconds_bucket{{api="Produce",le="0.002"}} {requests}
millstream_kafka_request_latency_seconds_bucket{{api="Produce",le="+Inf"}} {requests}
millstream_kafka_request_latency_seconds_count{{api="Produce"}} {requests}
millstream_net_received_bytes_total{{shard="0"}} {received}
millstream_memory_in_use_bytes{{shard="0"}} 1048576
millstream_memory_capacity_bytes{{shard="0"}} 4194304
millstream_memory_capacity_bytes{{shard="1"}} 4194304
millstream_process_cpu_seconds_total{{process="shard-0"}} {cpu}
millstream_process_cpu_seconds_total{{process="writer-0"}} {cpu}
millstream_process_cpu_seconds_total{{process="supervisor"}} 9
millstream_log_partitions{{shard="0"}} 12
millstream_log_partitions{{shard="1"}} 8
millstream_log_faulty{{shard="0"}} {faulty}
millstream_storage_read_only{{shard="0"}} {full}
millstream_start_time_seconds {started}
"""


def page(at, requests=0, busy=0.0, fast=0, received=0, cpu=0.0, faulty=0, full=0, started=1_800_000_000.25):
    return Exposition(PAGE.format(**{key: value for key, value in locals().items() if key != "at"}), at)


@pytest.fixture
def seen():
    found = activity(
        page(10.0, requests=100, busy=1.0, fast=100, received=5000, cpu=2.0),
        page(12.0, requests=300, busy=1.4, fast=250, received=2_102_152, cpu=2.5),
    )
    assert found is not None
    return found


def test_rates_are_of_the_time_in_between_and_per_shard(seen):
    first, second = seen.shards
    assert (first.shard, first.requests, first.received_bytes) == (0, 100.0, 1_048_576.0)
    assert first.latency == pytest.approx(0.002)
    assert first.cores == pytest.approx(0.5), "reactor and writer of the shard together"
    assert (second.requests, second.latency) == (0.0, None)
    assert seen.partitions == 20


def test_quantiles_are_of_the_time_in_between(seen):
    (produce,) = seen.apis
    assert (produce.api, produce.requests) == ("Produce", 100.0)
    assert (produce.p50, produce.p99) == (0.001, 0.002), "150 of 200 were fast"


def test_a_quantile_above_the_last_bucket_is_infinite_and_none_without_observations():
    buckets = [(0.001, 5.0), (math.inf, 10.0)]
    assert quantile([], buckets, 0.99) == math.inf
    assert quantile(buckets, buckets, 0.99) is None
    assert quantile([], [], 0.5) is None


def test_a_broker_that_was_started_anew_gives_nothing_to_compare():
    assert activity(page(1.0, requests=3), page(2.0, requests=100, started=1_800_000_001)) is None


def test_the_view_fits_eighty_columns_and_names_trouble():
    busy = page(1.0, requests=10**9, busy=3e6, received=10**13, cpu=10.0, faulty=2, full=1)
    found = activity(page(0.0), busy)
    assert found is not None
    lines = as_lines(found, "a-very-long-name-of-a-broker.example.org:9092," * 3)
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    assert "2 partitions are not served" in text
    assert "DISK FULL" in text


def test_a_narrow_terminal_gets_fewer_columns_and_loses_no_figure_in_the_middle(seen):
    trouble = msgspec.structs.replace(seen, faults=2, read_only=True)
    for width in range(40, 100):
        lines = as_lines(trouble, "a-very-long-name-of-a-broker.example.org:9092", width=width)
        assert max(map(len, lines)) <= min(width, WIDTH)
        assert "2 partitions" in " ".join(lines)
        assert " ".join(lines).split("disk free")[0].endswith("of ")
    narrow = as_lines(seen, "b:9092", width=40)
    shards = next(line for line in narrow if line.startswith("SHARD   CPU"))
    assert shards.split() == ["SHARD", "CPU", "REQ/S", "IN/S", "OUT/S", "MEM"]
    assert narrow[narrow.index(shards) + 1].split() == ["0", "50%", "100", "1.0", "MiB", "0", "B", "25%"]
    assert next(line for line in narrow if line.startswith("API")).split() == ["API", "REQ/S", "P99", "≤"]


@pytest.mark.parametrize("height", [12, 14, 20, 24, 60])
def test_a_low_terminal_shows_trouble_and_shards_first(seen, height):
    crowd = msgspec.structs.replace(
        seen,
        faults=1,
        read_only=True,
        shards=tuple(msgspec.structs.replace(seen.shards[0], shard=n, cores=n / 10) for n in range(16)),
        apis=seen.apis * 12,
    )
    for one in (seen, crowd):
        lines = as_lines(one, "b:9092", height)
        assert len(lines) <= height
        assert sum(line.startswith("SHARD   CPU") for line in lines) == 1
        assert "disk free" in lines[-1]
        assert any(line.startswith("Produce") for line in lines) == (one is seen or height >= 60)
    assert [line.split()[0] for line in lines[1:3]] == ["DAMAGED:", "DISK"]
    if height == 20:
        shown = [line.split()[0] for line in lines if line.split()[1:2] and line.split()[1].endswith("%")]
        assert shown == [str(n) for n in range(5, 16)], "the busiest"
        assert "and 5 less busy ones" in lines


def test_a_quiet_broker_has_a_view_too():
    found = activity(page(0.0), page(1.0))
    assert found is not None
    assert "no requests" in as_lines(found, "b:9092")


def test_documents_have_no_infinity():
    found = activity(page(0.0), page(1.0, requests=1))
    assert found is not None
    assert b"Infinity" not in msgspec.json.encode(as_document(found))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nmillstream_up 1\n",
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhello world\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\n",
    ],
)
def test_an_answer_that_ends_early_or_is_no_page_is_a_broker_that_does_not_answer(answer):
    def serve():
        peer, _ = listener.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(OSError, match="no page of metrics"):
            read_exposition(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics", 30.0)
        thread.join()
