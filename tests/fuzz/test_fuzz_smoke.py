"""A few seconds of what ``make fuzz`` does for minutes, everything that it ever found, and the harness itself."""

import time
import zlib
from pathlib import Path
from random import Random

import fuzz_judge
import fuzz_targets
import pytest
from fuzz_batches import bombs
from fuzz_spans import What, spans

from millstream.wire.apis import APIS
from millstream.wire.codec import decode_message, encode_message
from millstream.wire.errors import BatchError, ProtocolError
from millstream.wire.records import iter_records

INPUTS = 25
KINDS = (
    "request",
    "response",
    "frame",
    "dispatch",
    "produce",
    "stored",
    "embedded",
    "batch",
    "decompress",
    "file",
    "peer",
)
FINDINGS = Path(__file__).with_name("findings.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module", autouse=True)  # whatever comes first: without the fence its timer would end the run
def targets():
    found = {target.name: target for target in fuzz_targets.targets()}
    with fuzz_judge.fence():
        yield found


def test_every_target_is_of_a_kind_that_is_tried(targets):
    assert {name.split()[0] for name in targets} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_bent_inputs_are_read_or_refused_soon_and_in_little_memory(targets, kind, fresh_seed):
    for target in (target for name, target in targets.items() if name.split()[0] == kind):
        rng = Random(f"{fresh_seed}/{target.name}")
        for number in range(INPUTS):
            data = target.mutate(rng, rng.choice(target.seeds))
            found = fuzz_judge.judge(target, data, trace=number % 10 == 0)
            assert found is None, f"{found.target}: {found.kind}: {found.where}: {found.detail}: {found.data.hex()}"


@pytest.mark.parametrize("line", FINDINGS, ids=range(len(FINDINGS)))
def test_what_was_found_once_is_stood_now(targets, line):
    name, data, _ = (part.strip() for part in line.split("|", 2))
    assert fuzz_judge.judge(targets[name], bytes.fromhex(data), trace=True) is None


@pytest.mark.parametrize("data", bombs(64 << 20), ids=["gzip", "snappy", "lz4", "zstd"])
def test_a_bomb_ends_at_the_limit_and_not_at_its_size(targets, data):
    assert fuzz_judge.judge(targets["batch bomb"], data, trace=True) is None
    with pytest.raises(BatchError, match="decompressed"):
        list(iter_records(data, fuzz_targets.OUTPUT_MAX))


def planted(run):
    """A target with a defect."""
    return fuzz_targets.Target("planted defect", run, (ProtocolError,), [b"seed"], lambda _rng, data: data)


def test_the_judge_sees_a_crash_a_hang_a_loop_and_a_believed_claim(monkeypatch):
    monkeypatch.setattr(fuzz_judge, "STUCK_S", 0.3)

    def crash(data):
        return data[99]

    def slow(_data):
        end = time.thread_time() + 0.06
        while time.thread_time() < end:
            pass

    def loop(_data):
        while True:
            pass

    def claim(data):
        return bytes(len(data) << 20)

    def refused(_data):
        raise ProtocolError("no")

    def fine(data):
        return zlib.crc32(data)

    seen = {}
    for run in (crash, slow, loop, claim, refused, fine):
        found = fuzz_judge.judge(planted(run), b"input", trace=True)
        seen[run.__name__] = None if found is None else found.kind
    assert seen == {"crash": "crash", "slow": "hang", "loop": "hang", "claim": "memory", "refused": None, "fine": None}


def test_a_finding_is_made_as_small_as_it_goes():
    def crash(data):
        if b"\x07" in data:
            raise RuntimeError("seven")

    target = planted(crash)
    found = fuzz_judge.judge(target, bytes(range(200)) * 3)
    assert found is not None
    assert fuzz_judge.shrink(target, found).data == b"\x07"


def test_every_request_that_our_encoder_writes_is_walked_to_its_end_by_a_second_reader():
    """A generated encoder or decoder that moved a field would show here: the walk is written apart from both."""
    for api in APIS.values():
        for version in range(api.versions[0], api.versions[1] + 1):
            rng = Random(f"walk{api.name}{version}")
            for cls in (api.request, api.response):
                message = fuzz_targets.sample(rng, cls, version)
                data = bytes(encode_message(message, version))
                found = spans(cls, version, data)
                assert decode_message(cls, version, data) is not None
                ends = [span for span in found if span.what not in (What.ITEM, What.TAG)]
                assert sum(span.end - span.start for span in ends) == len(data)
