"""What a seed decides about a history of simulated brokers."""

from __future__ import annotations

from typing import Final

import msgspec

from millstream.core.raft.options import RaftOptions
from sim.engine.timeline import stream

IN_FLIGHT_MAX = 5
"""Most batches that an idempotent producer of Kafka has in flight."""


class Setting(msgspec.Struct, frozen=True):
    """What a history is like. The range of each knob includes its calm end."""

    nodes: int
    rounds: int
    round_us: int
    operations_per_s: int
    """Requests of all clients."""
    producers: int
    in_flight: int
    """Batches that a producer has in flight."""
    groups: bool
    """Whether there is a group that commits offsets."""
    controlled: bool
    """Whether there is a controller, with topics that come and go."""
    records: int
    """Largest count of records in a batch."""
    size: int
    """Largest size of a batch in bytes, beside its head."""
    fault_every_us: int
    loss: float
    delay_us: int
    sync_us: int
    """Disks take up to so long for what is written when a client appends."""
    crashes: bool
    cuts: bool
    pauses: bool
    stalls: bool
    transfers: bool
    """Kinds of faults that happen."""
    trims: bool
    trims_far: bool
    """Whether the log start may pass what a replica lacks, which is sent files then."""
    write_caching: bool
    wipes: bool
    """Whether a broker may lose the files of the topic, one broker at a time."""
    transactions: bool
    """Whether there is a transactional producer."""
    moves: bool
    """Whether replicas move between brokers."""
    members: bool
    """Whether there are groups whose members share partitions."""
    disk_faults: bool
    """Whether disks fail and fill up."""
    rots: bool
    """Whether files of a replica go bad, of one broker at a time."""
    snapshots: bool
    """Whether the controller's log is trimmed, so that brokers which were away are sent its snapshot."""
    upgrades: bool
    """Whether brokers start as an older release, and are upgraded."""
    checkpoint_bytes: int
    options: RaftOptions


def draw(seed: int) -> Setting:
    """The setting of a seed."""
    chance = stream(seed, "setting")
    timeout_us = chance.choice((300_000, 1_500_000))
    return Setting(
        nodes=chance.choice((1, 3, 3, 3, 5)),
        rounds=chance.choice((2, 4)),
        round_us=chance.choice((2, 6)) * timeout_us,
        operations_per_s=chance.choice((25, 30, 50)),
        producers=chance.choice((1, 2, 3)),
        in_flight=chance.choice((1, IN_FLIGHT_MAX)),
        groups=chance.random() < 0.4,
        controlled=chance.random() < 0.3,
        records=chance.choice((1, 1, 5)),
        size=chance.choice((0, 100, 1_000, 7_000)),
        fault_every_us=timeout_us // chance.choice((1, 2, 4)),
        loss=chance.choice((0, 0, 0.02, 0.2)),
        delay_us=chance.choice((100, 2_000, 20_000)),
        sync_us=chance.choice((0, 2_000, timeout_us // 10, timeout_us // 2)),
        crashes=chance.random() < 0.8,
        cuts=chance.random() < 0.8,
        pauses=chance.random() < 0.7,
        stalls=chance.random() < 0.7,
        transfers=chance.random() < 0.7,
        trims=chance.random() < 0.3,
        trims_far=False,
        write_caching=chance.random() < 0.15,
        wipes=False,
        transactions=False,
        moves=False,
        members=False,
        disk_faults=False,
        rots=False,
        snapshots=False,
        upgrades=False,
        checkpoint_bytes=chance.choice((8 << 10, 64 << 10, 256 << 10)),
        options=RaftOptions(
            heartbeat_us=timeout_us // 10,
            election_timeout_us=timeout_us,
            election_jitter_min_us=timeout_us // 50,
            election_jitter_max_us=timeout_us // 10,
            retry_min_us=timeout_us // 10,
            retry_max_us=timeout_us // 5,
            transfer_timeout_us=timeout_us,
            disk_stall_us=2 * timeout_us,
            max_in_flight_appends=chance.choice((1, 3, 64)),
            max_in_flight_bytes=chance.choice((1, 10_000, 4 << 20)),
            pre_vote=chance.random() < 0.7,
            check_quorum=chance.random() < 0.7,
            priority=chance.random() < 0.7,
        ),
    )


def draw_with_wipes(seed: int) -> Setting:
    """The setting of a seed with files that get lost. A replica behind what a quorum has lost can't be filled.

    Such histories are none of those that `draw` makes.
    """
    setting = draw(seed)
    return msgspec.structs.replace(setting, nodes=max(setting.nodes, 3), wipes=True, trims=False, write_caching=False)


def draw_with_installs(seed: int) -> Setting:
    """The setting of a seed whose log start passes what replicas lack, so that they get files in the place of entries.

    In a half of them replicas lose their files, too. Such histories are none of those that `draw` makes.
    """
    setting = draw_with_wipes(seed) if _other_half(seed) else draw(seed)
    return msgspec.structs.replace(setting, nodes=max(setting.nodes, 3), trims=True, trims_far=True)


def draw_with_disk_faults(seed: int) -> Setting:
    """The setting of a seed with disks that fail and fill up. Such histories are none of those that `draw` makes."""
    setting = draw_with_installs(seed) if _other_half(seed) else draw(seed)
    return msgspec.structs.replace(setting, disk_faults=True)


def draw_with_transactions(seed: int) -> Setting:
    """The setting of a seed with transactions, in a half of them with disks that fail, too.

    Such histories are none of those that `draw` makes.
    """
    return msgspec.structs.replace(
        draw(seed), transactions=True, disk_faults=_other_half(seed), trims=False, write_caching=False
    )


def draw_with_rests(seed: int) -> Setting:
    """The setting of a seed whose groups are at rest for most of the time. Such histories are none of those that `draw`
    makes.
    """
    setting = draw(seed)
    timeout_us = setting.options.election_timeout_us
    return msgspec.structs.replace(
        setting,
        nodes=max(setting.nodes, 3),
        operations_per_s=1,
        fault_every_us=2 * timeout_us,
        round_us=10 * timeout_us,
        groups=False,
    )


def draw_with_members(seed: int) -> Setting:
    """The setting of a seed with groups whose members come, go and keep still, in a half of them over disks that fail.

    Such histories are none of those that `draw` makes.
    """
    return msgspec.structs.replace(draw(seed), members=True, groups=True, disk_faults=_other_half(seed))


def draw_with_moves(seed: int) -> Setting:
    """The setting of a seed whose topics move between brokers, in a half of them over disks that fail.

    Such histories are none of those that `draw` makes.
    """
    setting = draw(seed)
    return msgspec.structs.replace(
        setting, nodes=max(setting.nodes, 3), controlled=True, moves=True, disk_faults=_other_half(seed)
    )


def draw_with_rots(seed: int) -> Setting:
    """The setting of a seed whose files go bad, with so much data that segments are full soon.

    Such histories are none of those that `draw` makes.
    """
    setting = draw(seed)
    return msgspec.structs.replace(
        setting,
        nodes=max(setting.nodes, 3),
        rots=True,
        controlled=False,
        write_caching=False,
        trims=False,
        size=max(setting.size, 1_000),
        operations_per_s=50,
        checkpoint_bytes=8 << 10,
    )


def draw_with_snapshots(seed: int) -> Setting:
    """The setting of a seed whose controller's log is short, in a half of them with topics that move.

    Such histories are none of those that `draw` makes.
    """
    setting = draw_with_moves(seed) if _other_half(seed) else draw(seed)
    return msgspec.structs.replace(
        setting,
        nodes=max(setting.nodes, 3),
        controlled=True,
        moves=_other_half(seed),
        disk_faults=False,
        snapshots=True,
        round_us=10 * setting.options.election_timeout_us,
        operations_per_s=50,
        cuts=True,
    )


def draw_with_upgrades(seed: int) -> Setting:
    """The setting of a seed whose brokers are upgraded one by one while topics move, in a half of them with a short log
    of the controller.

    Such histories are none of those that `draw` makes.
    """
    setting = draw(seed)
    timeout_us = setting.options.election_timeout_us
    return msgspec.structs.replace(
        setting,
        nodes=max(setting.nodes, 3),
        rounds=2,
        round_us=10 * timeout_us,
        operations_per_s=25,
        controlled=True,
        moves=True,
        snapshots=_other_half(seed),
        upgrades=True,
    )


def draw_for_campaign(seed: int) -> Setting:
    """The setting that a campaign plays a seed in: each kind of history in turn."""
    return _KINDS[seed % len(_KINDS)](seed)


def _other_half(seed: int) -> bool:
    """Half of the seeds of each kind."""
    return seed // 8 % 2 == 1


_KINDS: Final = (
    draw,
    draw_with_installs,
    draw_with_disk_faults,
    draw_with_wipes,
    draw_with_transactions,
    draw_with_members,
    draw_with_rests,
    draw_with_moves,
    draw_with_rots,
    draw_with_snapshots,
    draw_with_upgrades,
)
