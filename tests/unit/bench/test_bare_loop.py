"""The loop that stands in a broker's place is a fair one: what it answers is on the disk, and offsets are dense."""

from bench import bare, raw
from bench.child import Child
from bench.schedule import Schedule


def test_what_is_answered_is_in_the_file(tmp_path):
    batches = raw.batches(3, 1, 1000)
    with Child("bench.bare", {"topic": "bare", "directory": str(tmp_path)}) as loop:
        with raw.Caller(f"127.0.0.1:{loop.hear()}") as caller:
            sent = zip((0, 7, 7), batches, strict=True)
            offsets = [caller.produce_one("bare", partition, batch) for partition, batch in sent]
        assert offsets == [0, 0, 1]
        written = (tmp_path / "log").read_bytes()
    assert [written.index(raw.produce("bare", 7, batch)) % bare.BLOCK for batch in batches[1:]] == [0, 0]
    assert len(written) == bare.FILE_BYTES


def test_requests_are_found_whole_however_they_arrive():
    first, second = raw.produce("bare", 1, b"x"), raw.produce("bare", 2, b"yy")
    assert list(bare.requests(first + second)) == [(0, len(first)), (len(first), len(first) + len(second))]
    assert list(bare.requests(first + second[:-1])) == [(0, len(first))]
    assert list(bare.requests(first[:3])) == []


def test_a_load_is_measured_on_it():
    figures = bare.measure(Schedule(400, 4, 2), raw.batches(8, 1, 100), warm_s=0.1, measured_s=0.4)
    assert 0 < figures["bare_requests"] <= 200, "as many as the machine gives time for, and no more than were due"
    assert 0 < figures["bare_p50_ms"] <= figures["bare_p99_ms"] <= figures["bare_p999_ms"]
