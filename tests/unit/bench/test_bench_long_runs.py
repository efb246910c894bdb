"""What hours of load are judged by: trends, percentiles of millions, groups that believe nothing, failing children."""

import json
import struct
import sys
from types import SimpleNamespace

import pytest
from bench import buckets, child, plots, raw, run, scenarios, schedule, soak, tail_load, trend

from millstream.wire.codec import decode_request, encode_response
from millstream.wire.headers import parse_request_header
from millstream.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

CONTENT = raw.batches(4, 1, 20)
CHECKSUMS = [struct.unpack_from(">I", batch, 17)[0] for batch in CONTENT]


def points(values, every_s=10.0):
    return [(every_s * i, value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "flat"),
    [
        ([100.0] * 40, True),
        ([50.0 + i for i in range(40)], False),
        ([100.0 - i for i in range(40)], True),  # a fall is no leak
        ([10.0 * i for i in range(20)] + [200.0] * 20, True),  # what filled up before is no leak either
        ([100.0, 103.0] * 20, True),
        ([100.0] * 30 + [900.0] + [100.0] * 9, True),  # one spike
        ([100.0] * 20 + [100.0 + 0.5 * i for i in range(20)], False),
    ],
)
def test_a_series_is_flat_when_its_second_half_does_not_rise(values, flat):
    assert trend.of_second_half(points(values), 0.02, 1.0).flat is flat


def test_growth_is_told_for_the_time_looked_at_and_for_an_hour():
    found = trend.of_second_half(points([float(i) for i in range(721)]), 0.02, 1.0)
    assert found.growth == pytest.approx(360)
    assert found.a_hour == pytest.approx(360)
    assert found.level == 540


def test_percentiles_of_buckets_are_within_their_width():
    kept = buckets.Buckets()
    for value in range(1, 100_001):
        kept.append(float(value))
    for percent in (50, 90, 99, 99.9):
        assert 1000 * percent <= kept.percentile_us(percent) <= 1022.5 * percent
    assert kept.percentile_us(100) == 100_000
    other = buckets.Buckets()
    other.append(1e12)
    kept.add(other)
    assert (kept.count, kept.percentile_us(100)) == (100_001, 1e12)
    kept.clear()
    assert (kept.count, kept.percentile_us(50)) == (0, 0)


def expected(planned=100):
    given = {
        "rate": 1000.0,
        "partitions": 4,
        "connections": 2,
        "checksums": CHECKSUMS,
        "batch_bytes": len(CONTENT[0]),
        "planned": planned,
        "count_from": 4,
    }
    return tail_load.Expected(given)


def log(partition, offsets):
    """What the schedule of ``expected`` puts there."""
    batches = [CONTENT[(partition + 4 * offset) // 2 % 4] for offset in offsets]
    return b"".join(struct.pack(">q", offset) + batch[8:] for offset, batch in zip(offsets, batches, strict=True))


def test_the_schedule_is_what_the_producers_send():
    """Where a record stands tells which request it was; the generator's own requests say the same."""
    plan = schedule.Schedule(1000.0, partitions=4, connections=2)
    sent = {0: [], 1: []}
    for connection in sent:
        frames = run.plain.load.spread_requests("t", CONTENT, tuple(range(connection, 4, 2)))
        sent[connection] = [frames[i % len(frames)] for i in range(40)]
    stored = {partition: [] for partition in range(4)}
    for request in range(80):
        partition, frame = sent[request % 2][request // 2]
        stored[partition].append((request, frame))
    for partition, requests in stored.items():
        for offset, (request, frame) in enumerate(requests):
            assert plan.request(partition, offset) == request
            assert CONTENT[plan.content(request) % 4] in frame


def test_a_group_takes_what_was_sent_and_counts_from_when_it_was_due():
    groups = expected()
    assert groups.take(memoryview(log(1, [0, 1, 2])), 1, 0, now=1.0) == 3
    assert groups.latencies.count == 2  # request 1 belongs to the warm-up
    assert groups.latencies.max_us == pytest.approx(1e6 * (1.0 - 5 / 1000))
    assert groups.take(memoryview(log(1, [3]) + log(1, [4])[:30]), 1, 3, now=1.0) == 4  # a cut batch waits
    assert sum(groups.ends()) == 100


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(log(1, [1]), id="a hole"),
        pytest.param(log(2, [0]), id="the content of another partition"),
        pytest.param(log(1, [0])[:-2] + b"!!", id="harm that the checksum finds"),
    ],
)
def test_a_group_stops_over_what_was_not_sent(data):
    with pytest.raises(raw.UnexpectedAnswer):
        expected().take(memoryview(data), 1, 0, now=1.0)


def test_commits_are_what_the_codec_reads():
    frame = tail_load.commit_request("group", "topic", [7, 8])
    header = parse_request_header(frame, 4, len(frame))
    request = decode_request(8, 8, frame, header.body_pos, len(frame))
    (topic,) = request.topics
    assert (request.group_id, topic.name) == ("group", "topic")
    assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [(0, 7), (1, 8)]
    parts = [OffsetCommitResponsePartition(partition_index=i, error_code=code) for i, code in enumerate((0, 16))]
    answer = OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="topic", partitions=parts)])
    assert tail_load.commit_errors(b"\0\0\0\0\0" + bytes(encode_response(answer, 8))) == [0, 16]


def test_acknowledgements_of_a_long_run_must_follow_each_other():
    sink = soak.NextOffset(3)
    sink.append(0)
    sink.append(1)
    for wrong in (1, 3):
        with pytest.raises(raw.UnexpectedAnswer, match="partition 3: acknowledged"):
            sink.append(wrong)


def judged(**changed):
    """Verdicts on a good run but for what ``changed`` says of its samples."""
    seen = soak.Run(warm_s=100.0, outcome={"read": 5.0})
    for i in range(60):
        sample = {"pss_bytes": 200e6, "open_files": 400.0, "fragments": 1000.0, "callbacks": {"long_stalls": 0.0}}
        sample |= {name: change(i) for name, change in changed.items()}
        seen.samples.append({"at": 10.0 * i, **sample})
    return seen


@pytest.mark.parametrize(
    ("run", "broken"),
    [
        (judged(), []),
        (judged(pss_bytes=lambda i: 200e6 + 1e6 * i), ["memory (PSS), MB: level, growth"]),
        (judged(open_files=lambda i: 400 + i), ["file descriptors: level, growth"]),
        (judged(fragments=lambda i: 1000 + 10 * i), ["fragments: level, growth"]),
        (judged(callbacks=lambda i: {"long_stalls": float(i == 50)}), ["callbacks over 50 ms"]),
        (judged(callbacks=lambda i: {"long_stalls": float(i == 5)}), []),  # in the warm-up
    ],
)
def test_a_long_run_is_broken_by_what_grows_and_by_stalls(run, broken):
    assert [verdict.title for verdict in soak.judge(run) if not verdict.good] == broken


def test_a_long_run_is_broken_by_error_lines_and_by_what_the_groups_miss():
    seen = judged()
    seen.lines = ["2026-11-21T00:00:00.000Z ERROR [shard 0] no", "2026-11-21T00:00:00.000Z WARN  [shard 0] well"]
    seen.failure = "UnexpectedAnswer: lost"
    broken = [verdict.title for verdict in soak.judge(seen) if not verdict.good]
    assert broken == ["ERROR lines", "read and checked by the groups"]
    seen.samples = seen.samples[:15]
    assert [verdict.good for verdict in soak.judge(seen)] == [False]  # too little was seen to say anything


def test_a_long_run_tells_what_the_host_withheld_on_the_whole_and_around_each_long_callback():
    seen = judged(
        stolen_s=lambda i: 0.02 * i + 3.0 * (i >= 50), callbacks=lambda i: {"long_stalls": float(i in (50, 55))}
    )
    whole, first, second = soak.withheld(seen.samples)
    assert whole[1] == "2 / 302"
    assert (first[0].rpartition("at ")[2], first[1]) == ("0:08:20", "302")
    assert (second[0].rpartition("at ")[2], second[1]) == ("0:09:10", "2")


@pytest.mark.parametrize(("text", "seconds"), [("2h", 7200), ("10m", 600), ("1.5m", 90), ("45s", 45), ("45", 45)])
def test_durations_are_read_with_their_unit(text, seconds):
    assert soak.seconds(text) == seconds


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Makes a module out of a few lines."""

    def made(text):
        (tmp_path / "some_child.py").write_text(f"import json, sys\n{text}\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "some_child"

    return made


def test_a_child_is_told_and_heard(script):
    module = script("got = json.loads(sys.stdin.readline())\nprint(json.dumps(got['n'] + 1), flush=True)\nprint(7)")
    with child.Child(module, {"n": 1}) as one:
        assert one.hear(120) == 2
        assert one.result(60) == 7


def test_a_result_that_was_heard_before_is_still_the_result(script):
    with child.Child(script("sys.stdin.readline()\nprint('1\\n7', flush=True)"), {}) as one:
        one._process.wait(60)
        assert one.heard() == [1, 7]
        assert one.result(60) == 7


@pytest.mark.parametrize(
    "code", ["raise SystemExit('it broke')", "sys.exit(0)", "print('{}')\nraise SystemExit('it broke')"]
)
def test_a_child_that_fails_gives_no_figure(script, code):
    with child.Child(script(code), {}) as one, pytest.raises(raw.UnexpectedAnswer):
        one.result(60)


def test_a_child_ends_with_its_block(script):
    with child.Child(script("sys.stdin.readline()\nprint('1', flush=True)\nsys.stdin.read()"), {}) as one:
        assert one.hear(120) == 1
        assert one.heard() == []
        with pytest.raises(raw.UnexpectedAnswer, match="said nothing in time"):
            one.result(0.05)
    assert one._process.returncode is not None


def test_every_load_is_measured_on_brokers_that_it_names():
    keys = [scenario.key for scenario in scenarios.ALL]
    assert len(set(keys)) == len(keys)
    assert all((scenario.alone is None) == (scenario in scenarios.LOADS) for scenario in scenarios.ALL)
    names = {"one": 1, "two": 2, "kafka": None}
    assert run.names_for(scenarios.Alone(), names) == names
    assert run.names_for(scenarios.Alone(one_of_ours=True), names) == {"one": 1, "kafka": None}
    assert run.names_for(scenarios.Alone(peer_too=False), names) == {"one": 1, "two": 2}
    assert run.names_for(scenarios.Alone(peer_too=False), {"kafka": None}) == {}


@pytest.mark.slow
def test_plots_are_drawn_from_what_there_is(tmp_path):
    ladder = {"callbacks_le_0.5": 990.0, "callbacks_le_2": 999.0, "callbacks_le_inf": 1000.0}
    ladder |= {f"q{percent:g}": 0.1 * (i + 1) for i, percent in enumerate(scenarios.plain.LADDER)}
    results = {
        "rfc": {"ours": [ladder], "kafka": [ladder]},
        "small-16x8": {"ours": [{"cpu_us": 13.0}], "kafka": [{"cpu_us": 640.0}]},
    }
    drawn = plots.bench(results, ["ours", "kafka"], "kafka", tmp_path)
    assert [path.name for _, path in drawn] == ["cost.png", "latency.png", "callbacks.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for _, path in drawn)
    assert plots.bench({"start": {"ours": [{"first_ack_s": 1.0}]}}, ["ours"], "kafka", tmp_path) == []


def test_a_metric_that_nothing_touched_before_counts_from_nought():
    empty, page = SimpleNamespace(), SimpleNamespace()
    empty.histogram, empty.value = (lambda _: []), (lambda _: 0.0)
    page.histogram = lambda _: [(0.001, 990.0), (0.002, 999.0), (0.064, 1000.0), (float("inf"), 1000.0)]
    page.value = lambda _: 1.0
    figures = scenarios.plain.stalls.between(empty, page)
    assert (figures["callback_p999_ms"], figures["callback_max_ms"], figures["long_stalls"]) == (2.0, 64.0, 1.0)
    assert (figures["tick_p99_ms"], figures["write_max_ms"]) == (1.0, 64.0)
    assert json.loads(json.dumps(figures))
    assert sys.modules["bench.stalls"].between(page, page)["long_stalls"] == 0
