"""The handler of one served API, and whether its last request took long.

A request counts as costly by its size (``COSTLY_BYTES``) or because the last one of its API took long
(``COSTLY_NS``). Costly requests of all connections are handled in turn (``net.parking``).
"""

from collections.abc import Callable
from time import thread_time_ns
from typing import Any, Final

from millstream.kafka.api import Api
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.served import FETCH, Served
from millstream.wire.codec import Decoder, flexible_from

COSTLY_BYTES: Final = 4096
"""Size in bytes above which a request other than Produce is costly: it names hundreds of items, at about 1 µs each."""

COSTLY_NS: Final = 500_000
"""A short request also counts as costly if the last one of its API used more CPU than this (ns)."""

Handle = Callable[[Node, RequestContext, Any], None]


class HandledApi(Api):
    """An API as the dispatcher sees it: with its handler, and how to decode its requests."""

    __slots__ = ("costly", "decoders", "flexible_from", "gathers", "handle", "spent_ns", "turn", "weightless")

    def __init__(self, node: Node, row: Served, handle: Handle) -> None:
        super().__init__(node.shard, row)
        self.gathers = row.gathers
        self.weightless = row.weightless
        self.flexible_from = flexible_from(row.key)
        self.decoders: dict[int, Decoder] = {}
        self.costly = False
        """Whether the last request took long. Then the next ones are handled in turn with other costly requests."""
        self.turn = -1
        self.spent_ns = 0
        """What those that ask other shards took together in that turn of the loop: each leaves something to be held."""
        self.handle = handle if row.key <= FETCH else self._timed(handle)

    def _timed(self, handle: Handle) -> Handle:
        """Call ``handle`` and note how long it takes."""

        def timed(node: Node, ctx: RequestContext, request: Any) -> None:
            began_ns = thread_time_ns()
            handle(node, ctx, request)
            if len(ctx.body) > COSTLY_BYTES:
                return
            turn = node.shard.reactor.turns
            if turn != self.turn or not self.gathers:
                self.turn = turn
                self.spent_ns = 0
            self.spent_ns += thread_time_ns() - began_ns
            self.costly = self.spent_ns > COSTLY_NS

        return timed
