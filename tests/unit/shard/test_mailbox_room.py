"""Answers for which there is no room between two shards."""

from shard_pair import pair

from millstream.errors import OutcomeUnknown
from millstream.shard import messages, transfer

SILENT = 1


def test_answers_for_which_there_is_no_room_end_their_calls_and_stop_nobody(monkeypatch):
    monkeypatch.setattr(messages, "ANSWER_BACKLOG_BYTES", 1_000_000)
    monkeypatch.setattr(transfer, "BACKLOG_BYTES_MAX", 2_000_000)
    got = []

    def there(side):
        kept = []

        def silent(_, payload, reply):
            kept.append(reply)
            if len(kept) == 5:
                for size, old in zip((5_000_000, 600_000, 600_000, 600_000, 10), kept, strict=True):
                    old.send(bytes(size))

        side.mailbox.serve(SILENT, silent)

    def here(side):
        def answered(answer):
            got.append(answer)
            if len(got) == 5:
                side.finish()

        for _ in range(5):
            side.call(SILENT, b"", answered)

    pair(there, here, ring_capacity_bytes=32 * 1024)
    assert [type(answer) for answer in got] == [OutcomeUnknown, bytes, OutcomeUnknown, OutcomeUnknown, bytes]
