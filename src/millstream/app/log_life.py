"""The start of a broker whose acknowledgements wait for the object store (``shared.wal=object``).

A child of the supervisor takes a number for this run of the broker, and seals the logs of all earlier ones, before any
shard exists (`tiers.wal_lives`). It is a child because clients of stores have threads, and the supervisor forks later.
Without the store the start fails: nothing could be acknowledged, and what an earlier life left could not be ended.
"""

import os
from typing import Final

import msgspec

from millstream.cluster.identity import Identity
from millstream.config.settings import Settings
from millstream.errors import MillstreamError, Unavailable
from millstream.model.cluster import BrokerEpoch, NodeId
from millstream.model.shared import Writer
from millstream.objects import open_store
from millstream.shard.process import EXIT_OK, EXIT_UNAVAILABLE, spawn
from millstream.telemetry.log import log
from millstream.tiers.process import store_url
from millstream.tiers.wal_lives import begin_life

_PATIENCE_S: Final = 20.0


class _Outcome(msgspec.Struct):
    """What the child says."""

    broker_epoch: int = 0
    refusal: str = ""


def begin_log_life(settings: Settings, identity: Identity | None) -> Writer | None:
    """The run that starts; None if the disk alone is waited for.

    Raises:
        Unavailable: the store is, or this broker was taken over since its data directory was used.
    """
    if settings.shared_wal != "object":
        return None
    read_end, write_end = os.pipe()

    def main() -> int:
        os.close(read_end)
        log.who("log life")
        outcome = _begin(settings, identity)
        with open(write_end, "wb") as pipe:
            pipe.write(msgspec.msgpack.encode(outcome))
        return EXIT_UNAVAILABLE if outcome.refusal else EXIT_OK

    child = spawn("log life", main)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        said = pipe.read()
    child.wait()
    outcome = msgspec.msgpack.decode(said, type=_Outcome) if said else _Outcome(refusal="its process ended")
    if outcome.refusal:
        raise Unavailable(f"the write-ahead log in the store cannot be started: {outcome.refusal}")
    return Writer(NodeId(settings.node_id), BrokerEpoch(outcome.broker_epoch))


def _begin(settings: Settings, identity: Identity | None) -> _Outcome:
    try:
        store = open_store(store_url(settings), _PATIENCE_S)
        try:
            disk = "" if identity is None else identity.incarnation
            writer = begin_life(store, NodeId(settings.node_id), disk, settings.shards)
        finally:
            store.close()
    except MillstreamError as error:
        return _Outcome(refusal=error.message)
    return _Outcome(writer.broker_epoch)
