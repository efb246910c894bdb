"""Bytes that many answers contain: encoded once, sent from the one place they are in, counted once.

An answer about everything (all topics, with thousands of partitions) is large and the same for whoever asks. Made anew
for each of them it would cost the shard a copy and the machine its memory, times the number of clients that ask and
are slow to read. Here it is held by the answers that contain it and by whoever keeps it to be asked for again; what is
replaced in the meantime goes with the last answer that has it.

The memory counts as owed (``net.intake.Intake.owe``) from the first answer that is on its way to the last one sent or
dropped, however many there are.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.net.intake import Intake


class Shared:
    """Bytes lent to answers; the holder of each (``iobuf.outbox.Holder``).

    Lifecycle: made by who encodes; ``lend`` once for each answer, which ``release``-s it. Shard: the intake's.
    """

    __slots__ = ("data", "intake", "users")

    def __init__(self, intake: "Intake", data: bytes) -> None:
        self.intake = intake
        self.data = data
        self.users = 0

    def lend(self) -> None:
        """One answer more contains these bytes."""
        self.users += 1
        if self.users == 1:
            self.intake.owe(len(self.data))

    def release(self) -> None:
        """An answer that contained them was sent, or dropped."""
        self.users -= 1
        assert self.users >= 0
        if not self.users:
            self.intake.owe(-len(self.data))
