"""Entries of a group's owner in the log of a sole voter: committed in order, found again after a crash, folded."""

import random

import pytest

from millstream.raft import sole_voter
from millstream.raft.sole_voter import SoleVoterGroup
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard, plain_batch, recover_locally


def opened(disk: SimDisk, term: int = 0) -> tuple[LocalShard, SoleVoterGroup, list[bytes]]:
    report = recover_locally(disk)
    assert not report.faults, report.faults
    shard = LocalShard(disk, random.Random(1), clean=report.clean)
    group = SoleVoterGroup(shard.open(1), term)
    seen: list[bytes] = []
    group.events.on_owner_entry = lambda kind, payload: seen.append(bytes([kind]) + payload)
    return shard, group, seen


def settle(shard: LocalShard) -> None:
    shard.run(lambda: shard.storage.wal.idle)


def append(group: SoleVoterGroup) -> None:
    data = plain_batch(0, 1)
    group.replicate((memoryview(data),), len(data), 1, 1000)


def test_entries_are_announced_once_synced_and_are_history_after_a_crash() -> None:
    shard, group, seen = opened(SimDisk(random.Random(1)))
    append(group)
    group.propose_owner_entry(1, b"first")
    append(group)
    group.propose_owner_entry(2, b"second")
    assert not seen
    settle(shard)
    assert seen == [b"\x01first", b"\x02second"]
    assert group.high_watermark == 2, "an entry takes no offset"
    shard.disk.crash(torn=False)
    shard, group, seen = opened(shard.disk, term=1)
    assert [(one.kind, one.payload) for one in group.owner_history().entries] == [(1, b"first"), (2, b"second")]
    group.propose_owner_entry(1, b"third")
    append(group)
    settle(shard)
    assert seen == [b"\x01third"]
    assert group.log.next_offset == 3


@pytest.mark.parametrize("clean", [True, False])
def test_many_entries_fold_into_what_the_owner_says(clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sole_voter, "FOLD_CONTROLS", 5)
    shard, group, seen = opened(SimDisk(random.Random(1)))
    group.fold_with(lambda: b"".join(one[:1] for one in seen))
    for number in range(8):
        append(group)
        group.propose_owner_entry(number, b"")
        settle(shard)
    assert len(group.log.raft.controls.entries) == 2
    if clean:
        shard.stop()
    else:
        shard.call(shard.storage.checkpoint)
        shard.disk.crash(torn=False)
    shard, group, seen = opened(shard.disk, term=1)
    history = group.owner_history()
    assert history.state == bytes(range(6))
    assert [one.kind for one in history.entries] == [6, 7]
    assert group.log.next_offset == 8
