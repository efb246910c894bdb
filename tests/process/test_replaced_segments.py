"""ReplaceSegments on a real broker: readers notice nothing, repeated and stale requests get their answers, the old
objects go after the grace, and a kill loses nothing.
"""

import json
import random
import uuid

import msgspec
import pytest
from tiering import AT_ONCE, archived, consume, create, expected, only_the_tail_is_local, produce, tier

from millstream.client import Cluster
from millstream.client.replace_segments import replace_segments
from millstream.errors import Rejected
from millstream.format.archive import BLOCK_BYTES, decode_index, manifest_key, segment_key
from millstream.format.manifest import ArchiveId, decode_manifest
from millstream.format.segment import parse_batch
from millstream.format.segment_object import SegmentObject
from millstream.objects import open_store
from millstream.testing.process import Broker
from millstream.tiers.inspection import segments_of
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci]

RECORDS = 200


def merged(store, owner, before):
    """An object with the batches of the segments, written; its segment."""
    writer, parts, aborted = SegmentObject(owner, before[0].base_offset, BLOCK_BYTES), [], set()
    for one in before:
        whole = store.get(segment_key(owner, one), 0, one.size_bytes + one.index_bytes)
        aborted |= set(decode_index(owner, one, whole[one.size_bytes :]).aborted)
        view, at = whole[: one.size_bytes], 0
        while at < len(view):
            batch = parse_batch(view, at, at, len(view))
            parts.append(writer.add(batch, view[at : at + batch.size]) or b"")
            at += batch.size
    parts += [writer.end_block() or b"", writer.end(aborted)]
    made = msgspec.structs.replace(writer.segment(before[0].term), revision=random.randrange(1, 1 << 40))
    store.put(segment_key(owner, made), parts)
    return made


def refused(*request):
    with pytest.raises(Rejected) as caught:
        replace_segments(*request)
    return caught.value.code.name


def test_segments_are_replaced_and_nobody_notices():
    with Broker(settings=AT_ONCE) as broker, Cluster(broker.bootstrap) as cluster:
        create(broker, "old")
        create(broker, "local", storage_mode="local")
        produce(broker, "old", range(RECORDS))
        until(lambda: len(archived(broker)) > 5 and only_the_tail_is_local(broker), "nothing is archived")
        store = open_store(f"file://{broker.data_dir}/objects")
        owner = ArchiveId(uuid.UUID(cluster.metadata(["old"]).topics["old"].topic_id.hex()), 0)

        def manifest():
            return decode_manifest(store.get(manifest_key(owner), 0, store.head(manifest_key(owner)).size_bytes))

        def listed():
            return list(segments_of(store, manifest()))

        until(lambda: store.head(manifest_key(owner)) and len(listed()) > 5, "no manifest")
        before = listed()[:4]
        after = [merged(store, owner, before)]
        identity = uuid.uuid4()
        request = (cluster, "old", owner, identity, 0, before, after)
        assert replace_segments(*request) == 1
        assert replace_segments(*request) == 1, "the id tells what was carried out"
        rest = listed()[-2:]
        other = (cluster, "old", owner, uuid.uuid4())
        assert refused(*other, 0, rest, [merged(store, owner, rest)]) == "INVALID_UPDATE_VERSION"
        wrong = msgspec.structs.replace(after[0], revision=5)
        assert refused(*other, 1, after, [wrong]) == "RESOURCE_NOT_FOUND"
        flipped = msgspec.structs.replace(merged(store, owner, after), checksum=1)
        assert refused(*other, 1, after, [flipped]) == "INVALID_RECORD"
        assert refused(*other, 1, before, [merged(store, owner, before)]) == "INVALID_REQUEST"
        local = ArchiveId(uuid.UUID(cluster.metadata(["local"]).topics["local"].topic_id.hex()), 0)
        assert refused(cluster, "local", local, uuid.uuid4(), 0, before, after) == "INVALID_TOPIC_EXCEPTION"
        assert consume(broker, "old") == expected(range(RECORDS))
        until(lambda: after[0] in listed(), "the manifest object does not name the new object")
        gone = [segment_key(owner, one) for one in before]
        until(lambda: not any(map(store.head, gone)), "the old objects stay")

        broker.kill()
        broker.start()
        assert consume(broker, "old") == expected(range(RECORDS))
        assert replace_segments(*request) == 1, "a restart forgets nothing"
        found = tier(broker, "verify", "old")
        assert not found["findings"], json.dumps(found)
