"""Take-over of a dead broker's disk: it continues under another incarnation, and the earlier one is fenced permanently.

::

    disk, incarnation P ──TakeOver(P, N)──► BrokerReplaced(P ► N, same replacement) ──► P is retired, N may register

The disk keeps its number in the configuration of Raft groups (`BrokerState.replica`), because it has the log of each of
them, with every promise that the broker made. Its incarnation changes, and where the others reach it. So who comes
back as P, the process on the old machine or a copy of the disk, is refused by the registry and every broker, for ever.

Refused, with nothing changed: a broker that is alive; one that is not registered, or was declared lost; a disk that is
not the one with which the broker is registered, because an older one lacks what was acknowledged since. The same
request may be repeated.
"""

import msgspec

from millstream.core.controller.brokers import too_low
from millstream.core.controller.commands import MOVING_REPLICAS, BrokerRegistered, BrokerReplaced
from millstream.core.controller.losing import REASON_LENGTH_MAX, dead_broker
from millstream.core.controller.profile import profile_problem
from millstream.core.controller.requests import Result, TakeOver
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState
from millstream.errors import Rejected
from millstream.model.cluster import INCARNATION_BYTES
from millstream.model.error_code import ErrorCode


def decide_take_over(state: ControllerState, request: TakeOver, rules: Rules) -> Decision:
    """Fence the earlier life of a disk."""
    try:
        command = _taken_over(state, request, rules)
    except Rejected as error:
        return Decision((Result(error.code, error.message),))
    return Decision((Result(),), () if command is None else (command,))


def _taken_over(state: ControllerState, request: TakeOver, rules: Rules) -> BrokerRegistered | BrokerReplaced | None:
    """The command; None if it was carried out before. Raises Rejected."""
    node = request.node
    broker = state.registry.brokers.get(node)
    if len(request.incarnation) != INCARNATION_BYTES:
        raise Rejected(f"an incarnation has {INCARNATION_BYTES} bytes", ErrorCode.INVALID_REQUEST)
    if request.previous in state.registry.retired and (broker is None or broker.incarnation != request.incarnation):
        raise Rejected(
            f"this data directory (incarnation {request.previous.hex()}) was taken over, replaced or declared lost "
            "before, or its broker has left the cluster: nothing of it is needed",
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        )
    broker = dead_broker(state, node, rules)
    profile = msgspec.structs.replace(broker.profile, peer=request.peer)
    if (problem := profile_problem(profile)) is not None:
        raise Rejected(f"broker {node} {problem}", ErrorCode.INVALID_REQUEST)
    if broker.incarnation == request.incarnation:
        return None if profile == broker.profile else BrokerRegistered(node, broker.incarnation, profile)
    if broker.incarnation != request.previous:
        raise Rejected(
            f"broker {node} is registered with another data directory (incarnation {broker.incarnation.hex()}): this "
            f"one (incarnation {request.previous.hex()}) has nothing that the cluster needs",
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        )
    if request.incarnation in state.registry.retired or state.registry.owner(request.incarnation) is not None:
        raise Rejected("the new incarnation is that of another data directory", ErrorCode.INVALID_REQUEST)
    if state.feature_level < MOVING_REPLICAS:
        raise Rejected(too_low(state, "a disk can be taken over"), ErrorCode.UNSUPPORTED_VERSION)
    reason = request.reason[:REASON_LENGTH_MAX] or "no reason given"
    return BrokerReplaced(
        node,
        broker.incarnation,
        request.incarnation,
        profile,
        replacement=broker.replacement,
        reason=reason,
        version=1,
    )
