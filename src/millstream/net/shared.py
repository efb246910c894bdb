"""Bytes that many responses share: encoded once, stored once, counted once.

A response about all topics, with thousands of partitions, is large and the same for every client. A copy for each
client that asks and reads slowly would fill the memory. Instead, the responses share one object with a reference count.
The handler that caches it holds one reference; after a change, the old bytes are freed with the last response that has
them.

The memory counts as unsent (``net.owed.Owed.add``) once, from the first response in flight until the last one was
sent or dropped.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.net.intake import Intake


class Shared:
    """Shared bytes with a reference count. It is the holder (``iobuf.outbox.Holder``) of each response.

    Lifecycle: created with the encoded bytes; ``lend`` once for each response, which calls ``release``. Shard: the
    intake's.
    """

    __slots__ = ("data", "intake", "users")

    def __init__(self, intake: "Intake", data: bytes) -> None:
        self.intake = intake
        self.data = data
        self.users = 0

    def lend(self) -> None:
        """Add the reference of one response."""
        self.users += 1
        if self.users == 1:
            self.intake.owed.add(len(self.data))

    def release(self) -> None:
        """Remove the reference of a response that was sent or dropped."""
        self.users -= 1
        assert self.users >= 0
        if not self.users:
            self.intake.owed.add(-len(self.data))
