"""What ``tier scrub`` finds superfluous where segments were replaced."""

import uuid

import msgspec
from numbered_segments import OWNER, numbered

from millstream.format.archive import Replaced, TopicDescription, encode_topic, manifest_key, segment_key, topic_key
from millstream.format.manifest import encode_manifest
from millstream.objects import ObjectKey
from millstream.tiers.inspection import find_partitions, find_superfluous
from millstream.tiers.manifest import Archive
from sim.engine.objects import MemoryStore

HOUR_MS = 3_600_000


def test_replaced_objects_are_superfluous_an_hour_after_the_replacement():
    now = [0]
    store = MemoryStore(lambda: now[0])
    topic = TopicDescription("t", OWNER.topic_id.hex, 1, {})
    store.put(ObjectKey(topic_key(OWNER)), [encode_topic(topic)])
    archive, made = Archive(0), numbered(5)
    for one in made:
        archive.append(one)
        store.put(ObjectKey(segment_key(OWNER, one)), [b"x"])
    now[0] = 5 * HOUR_MS
    orphan = msgspec.structs.replace(made[4], revision=9)
    new = msgspec.structs.replace(made[1], end_offset=made[2].end_offset, revision=3)
    for one in (new, orphan):
        store.put(ObjectKey(segment_key(OWNER, one)), [b"y"])
    assert archive.replaced(Replaced(uuid.uuid4().bytes, 0, tuple(made[1:3]), (new,))) is not None
    store.put(ObjectKey(manifest_key(OWNER)), [encode_manifest(archive.manifest(OWNER))])

    def superfluous():
        found = find_superfluous(store, find_partitions(store), now[0] - HOUR_MS)
        return {one.key for one in found.findings}

    assert superfluous() == set(), "readers may have the old objects, and the orphan may be about to be committed"
    now[0] += HOUR_MS + 1
    assert superfluous() == {segment_key(OWNER, one) for one in (*made[1:3], orphan)}
