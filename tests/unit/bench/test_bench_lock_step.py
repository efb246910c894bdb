"""The groups in lock step take what was sent, and nothing else."""

from typing import Any, cast

import pytest
from bench import lock_step, raw
from bench.raw import UnexpectedAnswer

from millstream.wire.codec import encode_response
from millstream.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

BATCHES = [raw.batch([bytes([number]) * 20], 1000) for number in range(4)]


def stored(batch: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:]


class Caller:
    """Gives out one answer."""

    def __init__(self, response: FetchResponse) -> None:
        self.response = response

    def receive(self) -> bytes:
        return bytes(5) + bytes(encode_response(self.response, 12))


def take(parts: list[PartitionData], *, error: int = 0, position: int = 0) -> None:
    group = cast(Any, object.__new__(lock_step.Group))
    group._topic, group._session, group._epoch, group._position = "t", 7, 1, position
    group.caller = Caller(FetchResponse(0, error, 7, [FetchableTopicResponse("t", partitions=parts)]))
    group.take(BATCHES)
    assert group._position == position + 1


def parts(offset: int) -> list[PartitionData]:
    return [PartitionData(index, 0, 9, 9, 0, records=stored(batch, offset)) for index, batch in enumerate(BATCHES)]


@pytest.fixture(autouse=True)
def _four_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_step, "PARTITIONS", len(BATCHES))


def test_an_answer_with_the_next_record_of_every_partition_is_taken() -> None:
    take(parts(3), position=3)
    take(parts(3)[::-1], position=3)


@pytest.mark.parametrize("fault", ["offset", "content", "more", "missing", "empty", "partition", "answer"])
def test_anything_else_is_refused(fault: str) -> None:
    answer = parts(3)
    good = answer[1].records
    assert isinstance(good, bytes)
    wrong = {
        "offset": PartitionData(1, 0, 9, 9, 0, records=stored(BATCHES[1], 4)),
        "content": PartitionData(1, 0, 9, 9, 0, records=good[:-1] + b"x"),
        "more": PartitionData(1, 0, 9, 9, 0, records=2 * good),
        "empty": PartitionData(1, 0, 9, 9, 0, records=b""),
        "partition": PartitionData(1, 3, 9, 9, 0, records=good),
    }
    if fault == "missing":
        del answer[1]
    elif fault in wrong:
        answer[1] = wrong[fault]
    with pytest.raises(UnexpectedAnswer):
        take(answer, position=3, error=50 if fault == "answer" else 0)
