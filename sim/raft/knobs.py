"""What a seed decides about a run. Every limit's range includes 1, and every duration's range straddles the protocol's
timeouts; guards and optimisations are switched off in a part of the seeds, since they hide bugs that they don't cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from millstream.core.raft.options import RaftOptions
from sim.engine.timeline import SECOND, stream

if TYPE_CHECKING:
    import random

MILLISECOND = 1_000


class Knobs(Struct, frozen=True):
    """Options of a run; times in microseconds, chances from 0 to 1."""

    nodes: int
    spares: int
    """Nodes that are no members at first."""
    harsh: bool
    options: RaftOptions
    operations_per_s: float
    batch_records: int
    """Most records of a batch."""
    send_units: int
    """Most units of an append."""
    fold_units: int
    """Units that a log keeps behind its base before it is folded; 0 keeps all."""
    write_caching: bool
    fifo: bool
    """Whether messages between two nodes stay in order."""
    delay_us: int
    """Typical time on the network."""
    loss: float
    duplicate: float
    sync_us: int
    """Typical time of a sync."""
    cold_reads: float
    """Chance that entries to send must be read from files first."""
    fault_every_us: int
    membership: bool
    crashes: bool
    cuts: bool
    pauses: bool
    stalls: bool
    transfers: bool
    damage: bool
    """Whether durable entries of a minority may go bad, and disks be replaced."""
    recoveries: bool
    """Whether a round may end with the loss of a majority, and an unsafe recovery."""
    assigned: bool
    """Whether the first leader is assigned; some machines come up late then."""
    first_term: int
    """Its term: 0, or 1 as in a group that an older release has made."""


def draw_knobs(seed: int, nodes: int | None = None, *, harsh: bool | None = None) -> Knobs:
    """Knobs of a seed; half of the seeds are harsh."""
    chance = stream(seed, "knobs")
    is_harsh = chance.random() < 0.5 if harsh is None else harsh
    count = nodes or chance.choice((1, 3, 3, 3, 3, 5, 5))
    return Knobs(
        nodes=count,
        spares=chance.choice((0, 1, 2)) if chance.random() < 0.6 else 0,
        harsh=is_harsh,
        options=_options(chance),
        operations_per_s=chance.choice((20, 20, 25, 40, 100)),
        batch_records=chance.choice((1, 1, 2, 10, 100)),
        send_units=chance.choice((1, 1, 2, 10, 1000)),
        fold_units=chance.choice((0, 0, 1, 5, 50, 300)),
        write_caching=chance.random() < 0.15,
        fifo=chance.random() < 0.5,
        delay_us=chance.choice((100, 500, 2_000, 10_000)) if not is_harsh else chance.choice((500, 5_000, 40_000)),
        loss=chance.choice((0, 0, 0.01, 0.05)) if not is_harsh else chance.choice((0, 0.02, 0.1, 0.3)),
        duplicate=chance.choice((0, 0.01)) if not is_harsh else chance.choice((0, 0.05, 0.3)),
        sync_us=chance.choice((200, 1_000, 5_000)) if not is_harsh else chance.choice((500, 5_000, 40_000)),
        cold_reads=chance.choice((0, 0, 0.1, 1)),
        fault_every_us=int(chance.choice((5, 10, 30)) * SECOND / (5 if is_harsh else 1)),
        membership=chance.random() < 0.3,
        crashes=chance.random() < 0.85,
        cuts=chance.random() < 0.8,
        pauses=chance.random() < 0.5,
        stalls=chance.random() < 0.6,
        transfers=chance.random() < 0.5,
        damage=chance.random() < 0.3,
        recoveries=stream(seed, "recoveries").random() < 0.2,
        assigned=stream(seed, "assigned").random() < 0.5,
        first_term=int(stream(seed, "first term").random() < 0.3),
    )


def _options(chance: random.Random) -> RaftOptions:
    timeout = chance.choice((1_500, 1_500, 500, 300)) * MILLISECOND
    scale = timeout / (1_500 * MILLISECOND)
    return RaftOptions(
        heartbeat_us=timeout // 10,
        election_timeout_us=timeout,
        election_jitter_min_us=int(30_000 * scale),
        election_jitter_max_us=int(150_000 * scale),
        retry_min_us=int(150_000 * scale),
        retry_max_us=int(300_000 * scale),
        transfer_timeout_us=timeout,
        disk_stall_us=chance.choice((0, 2 * timeout, 2 * timeout)),
        max_in_flight_appends=chance.choice((1, 2, 16, 64)),
        max_in_flight_bytes=chance.choice((1, 1_000, 1 << 22, 1 << 22)),
        pre_vote=chance.random() < 0.5,
        check_quorum=chance.random() < 0.6,
        priority=chance.random() < 0.6,
        pipelining=chance.random() < 0.8,
    )
