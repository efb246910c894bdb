"""The description of a topic, written before its first shared object or entry of the log in the store.

::

    examine ──► the same, or of more partitions: done        replace, if it still has that version ──► done

As the archiver's derived objects it is written on the condition that it has not changed: a write whose answer
was lost takes no effect after a newer one. Partitions are only ever added, so a description of fewer is the older one,
of a broker that does not know better yet. After an error the caller asks again, and all of it is decided again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millstream.errors import Corruption, MillstreamError
from millstream.format.archive import decode_topic, encode_topic, topic_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.format.archive import TopicDescription
    from millstream.format.manifest import ArchiveId
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.messages import Examined


class Descriptions:
    """The descriptions of topics that the store has got from one shard. Lifecycle: as long as the shard."""

    __slots__ = ("_link", "_of", "_written")

    def __init__(self, link: ArchiveLink, of: Callable[[bytes], TopicDescription | None]) -> None:
        """``of`` gives what is to be known of the topic with that id, None if there is no such topic."""
        self._link = link
        self._of = of
        self._written: set[bytes] = set()

    def write_next(self, owners: Iterable[ArchiveId], done: Callable[[MillstreamError | None], None]) -> bool:
        """Have the store describe the next topic of these partitions. False: it has them all. Otherwise ``done`` gets
        None, and the caller asks again; or why it failed.
        """
        for owner in owners:
            topic_id = owner.topic_id.bytes
            if topic_id not in self._written and (topic := self._of(topic_id)) is not None:
                describe(self._link, owner, topic, partial(self._wrote, topic_id, done))
                return True
        return False

    def _wrote(
        self, topic_id: bytes, done: Callable[[MillstreamError | None], None], error: MillstreamError | None
    ) -> None:
        if error is None:
            self._written.add(topic_id)
        done(error)


def describe(
    link: ArchiveLink, owner: ArchiveId, topic: TopicDescription, done: Callable[[MillstreamError | None], None]
) -> None:
    """Have the store describe the topic of a partition; ``done`` gets None once it does, or why not."""
    key, data = topic_key(owner), encode_topic(topic)

    def examined(found: Examined | MillstreamError) -> None:
        if isinstance(found, MillstreamError):
            done(found)
        elif is_described(found.data, topic):
            done(None)
        else:
            link.replace(key, data, found.version, replaced)

    def replaced(result: str | MillstreamError) -> None:
        done(result if isinstance(result, MillstreamError) else None)

    link.examine(key, examined)


def is_described(data: bytes, topic: TopicDescription) -> bool:
    """Whether an object describes the topic as well as ``topic``, or better. A damaged one does not."""
    if data == encode_topic(topic):
        return True
    try:
        found = decode_topic(data) if data else None
    except Corruption:
        return False
    return found is not None and found.topic_id == topic.topic_id and found.partitions > topic.partitions
