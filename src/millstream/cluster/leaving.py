"""A broker that stops tells the controller, which then fences it at once instead of after some silence.

The stop continues after ``LEAVE_US`` in any case; then the broker is fenced for its silence.
"""

from collections.abc import Callable
from typing import Final

from millstream.core.controller.requests import FenceBroker, encode_request
from millstream.model.cluster import BrokerEpoch, NodeId
from millstream.peers.network import Network
from millstream.shard.reactor import Reactor

LEAVE_US: Final = 500_000
LEAVE_RETRY_US: Final = 20_000


def tell_leaving(
    reactor: Reactor,
    network: Network,
    method: int,
    node: NodeId,
    epoch: BrokerEpoch | None,
    leader: Callable[[], NodeId | None],
    done: Callable[[], None],
) -> None:
    """Ask the ``leader`` of the moment, by a call of ``method``, to fence this broker; ``done`` is called once, in any
    case. ``epoch`` is that of its registration.
    """
    waiting = True

    def finish(_: object = None) -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            done()

    def tell() -> None:
        found = leader()
        if not waiting:
            return
        if epoch is None or found == node:
            finish()
        elif found is None:  # the one that this broker handed over to has not spoken yet
            reactor.call_later(LEAVE_RETRY_US, tell)
        else:
            network.calls.call(found, method, encode_request(FenceBroker(node, epoch)), LEAVE_US // 1000, finish)

    reactor.call_later(LEAVE_US, finish)
    tell()
