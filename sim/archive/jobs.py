"""Jobs that merge archived segments while everything fails: each reads a manifest, old or new, writes a merged object,
and asks brokers to replace what it merged until one of them says how that ended.

A job may be late, so that its manifest has moved on; it may write a damaged object; it may die after its object; it
repeats its request to any broker, also after it was carried out. Two jobs may merge the same segments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from millstream.errors import MillstreamError, OutcomeUnknown
from millstream.format.archive import decode_index, manifest_key, segment_key
from millstream.format.manifest import ArchivedSegment, decode_manifest
from millstream.format.segment import parse_batch
from millstream.format.segment_object import SegmentObject
from millstream.model.error_code import RETRIABLE, ErrorCode
from millstream.objects import ObjectKey
from millstream.tiers import uploading
from millstream.tiers.inspection import segments_of
from millstream.tiers.replacing import Replacement
from sim.engine.violation import Violation

if TYPE_CHECKING:
    import random

    from millstream.format.manifest import Manifest
    from sim.archive.broker import TieredBroker
    from sim.archive.history import TieredHistory
    from sim.brokers.world import Broker

_CHANCE: Final = 0.1
_ATTEMPTS_MAX: Final = 12
_ID_BITS: Final = 128
_REVISION_BITS: Final = 48


class MergeJobs:
    """The jobs of one history."""

    def __init__(self, world: TieredHistory, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._manifests: list[Manifest] = []
        """Manifest objects that were seen, the newest last."""

    def step(self) -> None:
        """Maybe start a job."""
        if self._chance.random() >= _CHANCE:
            return
        brokers = self._world.tiered_brokers
        archive = brokers[0].archive if brokers else None
        stored = self._world.judge.store.objects
        found = None if archive is None else stored.get(ObjectKey(manifest_key(archive.owner)))
        if found is None:
            return
        newest = decode_manifest(found[0])
        if not self._manifests or self._manifests[-1] != newest:
            self._manifests.append(newest)
        late = self._chance.random() < 0.2
        self._merge(self._chance.choice(self._manifests[-4:]) if late else newest)

    def _merge(self, manifest: Manifest) -> None:
        store = self._world.judge.store
        try:
            segments = list(segments_of(store, manifest))
        except MillstreamError:
            return  # a part of an old manifest is deleted
        count = self._chance.randrange(1, 5)
        if len(segments) < count:
            return
        first = self._chance.randrange(len(segments) - count + 1)
        before = tuple(segments[first : first + count])
        made = self._made(manifest, before)
        if made is None:
            return
        after, data = made
        if self._chance.random() < 0.1:
            data[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)
            self._world.truth.note("job with a damaged object")
        try:
            self._world.store.put(ObjectKey(segment_key(manifest.owner, after)), [bytes(data)])
        except OutcomeUnknown:
            pass
        except MillstreamError:
            return
        if self._chance.random() < 0.1:
            return  # it died
        identity = self._chance.getrandbits(_ID_BITS).to_bytes(_ID_BITS // 8, "big")
        self._ask(Replacement(identity, manifest.version, before, (after,)), [], _ATTEMPTS_MAX)

    def _made(
        self, manifest: Manifest, before: tuple[ArchivedSegment, ...]
    ) -> tuple[ArchivedSegment, bytearray] | None:
        """A segment with the batches of the others, and the bytes of its object; None if one of these is deleted."""
        stored = self._world.judge.store.objects
        merged = SegmentObject(manifest.owner, before[0].base_offset, uploading.BLOCK_BYTES)
        data, aborted = bytearray(), set[tuple[int, int, int]]()
        for segment in before:
            found = stored.get(ObjectKey(segment_key(manifest.owner, segment)))
            if found is None:
                return None
            index = decode_index(manifest.owner, segment, found[0][segment.size_bytes :])
            aborted |= set(index.aborted or ())
            view, at = memoryview(found[0])[: segment.size_bytes], 0
            while at < len(view):
                batch = parse_batch(view, at, at, len(view))
                data += merged.add(batch, view[at : at + batch.size]) or b""
                at += batch.size
        data += merged.end_block() or b""
        data += merged.end(aborted)
        revision = 1 + self._chance.getrandbits(_REVISION_BITS)
        return replace(merged.segment(max(one.term for one in before)), revision=revision), data

    def _ask(self, wanted: Replacement, done: list[int], left: int) -> None:
        """Send the request to some broker, and again if the answer leaves it open."""
        world = self._world
        brokers = world.tiered_brokers
        if not left or not brokers:
            return
        to: TieredBroker = self._chance.choice(brokers)

        def again() -> None:
            world.cluster.after(20 * world.delay_us(), lambda: self._ask(wanted, done, left - 1))

        def answered(result: int | MillstreamError) -> None:
            if isinstance(result, MillstreamError):
                world.truth.note(f"replacement refused: {result.code.name}")
                if done and result.code not in RETRIABLE:
                    raise Violation(f"G7: a replacement that was carried out is refused then: {result.message}")
                if result.code in RETRIABLE and result.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    again()
                return
            if done and done[0] != result:
                raise Violation(f"G7: a replacement has made version {done[0]}, and is answered with {result} then")
            world.truth.note("replacement repeated" if done else "replacement carried out")
            done[:] = [result]
            if self._chance.random() < 0.3:
                again()

        def deliver(_: Broker) -> None:
            archive, archiver = to.archive, to.archiver
            if to.is_up and archive is not None and archiver is not None and not archive.closed:
                archiver.replacing.replace(archive, wanted, answered)

        world.cluster.send_at(world.cluster.now + world.delay_us(), to.replica, deliver)
