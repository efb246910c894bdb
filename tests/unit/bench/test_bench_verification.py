"""The load generator believes nothing: each lie of a broker stops the measurement."""

import os
import socket
import struct
import subprocess
import sys
import threading
from array import array
from pathlib import Path

import pytest
from bench import meter, plots, processes, raw, report, run, scenarios, soak, verify
from bench.subjects import Subject

from millstream.shard.process import may_become_realtime
from millstream.wire.codec import decode_request, decode_response, encode_response
from millstream.wire.headers import parse_request_header
from millstream.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from millstream.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from millstream.wire.records import iter_batches, iter_records

BATCHES = raw.batches(3, 2, 50)


def placed(batch, offset):
    """The batch as a broker stores it."""
    return struct.pack(">q", offset) + batch[8:]


LOG = b"".join(placed(batch, 2 * i) for i, batch in enumerate(BATCHES))


def produced(bases=(0, 2, 4)):
    checksums = frozenset(struct.unpack_from(">I", batch, 17)[0] for batch in BATCHES)
    return verify.Produced("t", {0: array("q", bases)}, 2, checksums)


def test_our_requests_are_what_the_codec_reads():
    frame = raw.produce("topic", 3, BATCHES[0])
    header = parse_request_header(frame, 4, len(frame))
    assert (header.api_key, header.api_version) == (0, 9)
    request = decode_request(0, 9, frame, header.body_pos, len(frame))
    partition = request.topic_data[0].partition_data[0]
    assert (request.acks, request.topic_data[0].name, partition.index) == (-1, "topic", 3)
    assert bytes(partition.records) == BATCHES[0]
    frame, place = raw.fetch("topic", 3, 1 << 20)
    struct.pack_into(">q", frame, place, 77)
    header = parse_request_header(frame, 4, len(frame))
    request = decode_request(1, 12, bytes(frame), header.body_pos, len(frame))
    partition = request.topics[0].partitions[0]
    assert (partition.partition, partition.fetch_offset, partition.partition_max_bytes) == (3, 77, 1 << 20)
    assert (request.max_bytes, request.min_bytes) == (1 << 20, 1)


def test_our_batches_are_what_the_codec_reads():
    values = [b"a", b"bb" * 100, b""]
    (batch,) = list(iter_batches(memoryview(raw.batch(values))))
    assert [bytes(record.value) for record in iter_records(batch)] == values


def test_an_answer_to_produce_is_read_at_its_places():
    parts = PartitionProduceResponse(index=5, error_code=0, base_offset=1234, log_start_offset=7)
    body = encode_response(
        ProduceResponse(responses=[TopicProduceResponse(name="topic", partition_responses=[parts])]), 9
    )
    frame = struct.pack(">iib", len(body) + 5, 42, 0) + bytes(body)
    layout = raw.produce_answer("topic")
    assert layout.size == len(frame)
    assert layout.unpack(frame) == (len(frame) - 4, 42, 5, 0, 1234, -1, 7, 0)


def fetch_frame(records, error=0):
    data = PartitionData(partition_index=0, error_code=error, high_watermark=6, log_start_offset=0, records=records)
    body = bytes(encode_response(FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])]), 12))
    assert decode_response(1, 12, body, 0, len(body))
    return struct.pack(">ib", 7, 0) + body


def test_an_answer_to_fetch_is_read_at_its_places():
    frame = fetch_frame(LOG)
    answer = raw.FetchAnswer(memoryview(frame), "t")
    assert frame[answer.records_start : answer.records_end] == LOG
    assert answer.high_watermark == 6
    with pytest.raises(raw.UnexpectedAnswer, match="partition error 6"):
        raw.FetchAnswer(memoryview(fetch_frame(b"", error=6)), "t")


@pytest.fixture
def serving():
    """A broker that answers every request with the same frame."""
    listener = socket.create_server(("127.0.0.1", 0))
    frames = []

    def serve():
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(4):
                size = struct.unpack(">i", data)[0]
                while size:
                    size -= len(connection.recv(size))
                connection.sendall(struct.pack(">i", len(frames[0])) + frames[0])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield lambda frame: frames.append(frame) or f"127.0.0.1:{listener.getsockname()[1]}"
    thread.join(60)
    listener.close()


def test_reading_back_accepts_what_was_acknowledged(serving):
    assert verify.read_back(serving(fetch_frame(LOG)), produced()) == 6


def flipped(position):
    data = bytearray(LOG)
    data[position] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    "log",
    [
        flipped(len(LOG) - 3),  # a byte of a value
        flipped(20),  # the checksum
        placed(BATCHES[0], 0) + placed(BATCHES[1], 3) + placed(BATCHES[2], 5),  # a hole
        placed(BATCHES[0], 0) + placed(BATCHES[0], 0),  # a batch twice
        placed(raw.batch([b"never", b"sent"]), 0),  # something else
        b"",
        LOG[:100],
    ],
)
def test_reading_back_finds_what_is_not_as_it_was_sent(serving, log):
    with pytest.raises(raw.UnexpectedAnswer):
        verify.read_back(serving(fetch_frame(log)), produced())


@pytest.mark.parametrize("bases", [(0, 2, 2), (0, 4, 6), (2, 4, 6), (0, 1, 2)])
def test_acknowledged_offsets_with_holes_or_doubles_are_no_figure(bases):
    with pytest.raises(raw.UnexpectedAnswer, match="holes or doubles"):
        verify.check_dense(produced(bases))


def test_acknowledgements_may_come_in_any_order():
    assert verify.check_dense(produced((4, 0, 2))) == 6


def test_percentiles_are_those_of_the_nearest_rank():
    outcome = meter.Outcome(latencies_us=array("d", range(1, 1001)))
    assert [outcome.percentile_us(p) for p in (50, 99, 99.9, 100)] == [500, 990, 999, 1000]
    assert meter.Outcome().percentile_us(99) == 0


def test_cost_of_a_process_tree_counts_its_children():
    burn = (
        "import os, sys\nif os.fork() == 0:\n    while os.times().user < 0.3: pass\n"
        "    print('burnt', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"burnt\n"
        assert len(processes.tree(process.pid)) == 2
        assert processes.cpu_seconds(process.pid) >= 0.3
        assert processes.pss_bytes(process.pid) > 1 << 20
        pids = processes.tree(process.pid)
        process.stdin.close()
        assert processes.wait_gone(pids) == []
    assert processes.tree(process.pid) == []
    assert processes.cpu_seconds(process.pid) == 0
    assert processes.is_alive(os.getpid())


def test_a_budget_is_judged_in_its_direction():
    cost, flow = scenarios.Figure("c", "cost", True, 1, 14), scenarios.Figure("f", "flow", False, 1, 1.2)
    assert [report.verdict(cost, value) for value in (14, 14.1, None)] == ["met", "missed", ""]
    assert [report.verdict(flow, value) for value in (1.2, 1.1, None)] == ["met", "missed", ""]


def test_ratios_say_how_many_times_better_ours_is():
    scenario = scenarios.Scenario(
        "s", "load", (scenarios.Figure("c", "cost", True, 1, 14), scenarios.Figure("f", "flow", False)), lambda *_: {}
    )
    results = {"s": {"ours": [{"c": 10, "f": 6}, {"c": 30, "f": 6}, {"c": 11, "f": 6}], "kafka": [{"c": 44, "f": 2}]}}
    rows = report.rows([scenario], results, ["ours", "kafka"], "kafka")
    assert rows == [
        ["load", "cost", "11.0", "44.0", "4.0 ×", "≤ 14", "met"],
        ["", "flow", "6.00", "2.00", "3.0 ×", "", ""],
    ]


def test_the_document_keeps_what_people_wrote_around_the_figures(tmp_path):
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.write_document(page, "new\n")
    assert page.read_text() == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="has no place for figures"):
        report.write_document(page, "new\n")


def test_a_table_of_headlines_has_the_chosen_figures_alone():
    scenario = scenarios.Scenario(
        "s", "load", (scenarios.Figure("c", "cost", True, 1), scenarios.Figure("f", "flow", False)), lambda *_: {}
    )
    results = {"s": {"ours": [{"c": 10, "f": 6}]}}
    assert report.rows([scenario], results, ["ours"], "kafka", {"s": ("f",)}) == [
        ["load", "flow", "6.00", "–", "", ""],
    ]
    assert report.rows([scenario], results, ["ours"], "kafka", {}) == []


def test_headlines_name_figures_that_are_measured():
    figures = {scenario.key: {figure.name for figure in scenario.figures} for scenario in scenarios.ALL}
    assert [key for key, names in scenarios.HEADLINES.items() if not figures[key].issuperset(names)] == []


@pytest.mark.parametrize(
    ("page", "marks"),
    [
        (run.DOCUMENT, (report.BEGIN, report.END)),
        (run.ALL_FIGURES, (report.BEGIN, report.END)),
        (soak.DOCUMENT, (soak.BEGIN, soak.END)),
    ],
)
def test_the_pages_of_the_project_have_a_place_for_figures(page, marks):
    root = Path(scenarios.__file__).resolve().parent.parent
    text = (root / page).read_text(encoding="utf-8")
    assert text.index(marks[0]) < text.index(marks[1])


def test_the_pages_get_headlines_every_figure_and_their_plots(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "notes").mkdir(parents=True)
    for page in (run.DOCUMENT, run.ALL_FIGURES):
        page.write_text(f"{report.BEGIN}\n{report.END}\n")
    results = {"bulk": {"one": [{"gb_per_cpu_s": 2.0, "p99_ms": 3.0}], "kafka": [{"gb_per_cpu_s": 1.0}]}}
    names = ["one", "two", "kafka"]
    about = dict.fromkeys(("date", "commit", "processor", "kernel", "python", "kafka", "java", "hiccups"), "x")
    table = report.rows(scenarios.ALL, results, names, "kafka")
    drawn = [("costs", run.IMAGES / "cost.png"), ("callbacks", run.IMAGES / plots.CALLBACKS)]
    run.write_pages(results, table, names, about, "command", drawn)
    page, everything = run.DOCUMENT.read_text(), run.ALL_FIGURES.read_text()
    assert "| GB a broker-CPU-second | 2.00 | 1.00 | 2.0 × |" in page
    assert "two" not in page and "p99" not in page
    assert "images/cost.png" in page and "callbacks" not in page
    assert "p99, ms | 3.00" in everything and "two" in everything
    assert "../images/callbacks.png" in everything and "cost.png" not in everything


def test_what_a_broker_complains_of_during_a_step_is_told_once(tmp_path):
    broker = Subject("ours", str(tmp_path), 1)
    assert broker.complaints() == []
    log = tmp_path / "data.stderr"
    log.write_text(
        "2026 INFO  [shard 0] ready\nready: bootstrap\n2026 WARN  [shard 0] stalled\n  File a.py\n2026 INFO  well\n"
    )
    assert broker.complaints() == ["2026 WARN  [shard 0] stalled", "  File a.py"]
    assert broker.complaints() == []
    with log.open("a") as more:
        more.write("2026 ERROR [shard 0] lost\n")
    assert broker.complaints() == ["2026 ERROR [shard 0] lost"]


@pytest.mark.skipif(not may_become_realtime(), reason="needs root, CAP_SYS_NICE or ulimit -r 1")
def test_realtime_priority_is_for_the_measurement_alone_and_for_every_thread_of_the_peer():
    with processes.realtime():
        assert os.sched_getscheduler(0) == os.SCHED_RR
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    threads = (
        "import threading, sys; threading.Thread(target=sys.stdin.read).start(); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", threads], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
        assert peer.stdout is not None
        peer.stdout.readline()
        processes.make_realtime(peer.pid)
        tasks = os.listdir(f"/proc/{peer.pid}/task")
        assert [os.sched_getscheduler(int(task)) for task in tasks] == [os.SCHED_RR] * 2
        peer.communicate()
