"""Brokers that an operator has declared lost: their disks never come back, so that others may continue without them.

A broker that is declared lost keeps its id and its replicas, with a disk that stands for none (`BrokerState.is_lost`).
The disk that it had is retired: the registry refuses it for ever, and so does every broker. So a lost broker
 that comes back neither votes nor acknowledges with what it holds. Another directory takes its place with
``start --replace``, and is filled by the other replicas; or the broker is decommissioned like any other.

A broker that is alive is not lost. The request is carried out as a whole, or refused as a whole; repeating it is
harmless.
"""

from typing import Final

from millstream.core.controller.brokers import too_low
from millstream.core.controller.commands import MOVING_REPLICAS, AnyCommand, BrokerReplaced
from millstream.core.controller.registry import LOST_PREFIX, BrokerState
from millstream.core.controller.requests import DeclareLost, Result
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState
from millstream.errors import Rejected
from millstream.model.cluster import Incarnation, NodeId
from millstream.model.error_code import ErrorCode

REASON_LENGTH_MAX: Final = 500


def decide_declare_lost(state: ControllerState, request: DeclareLost, rules: Rules) -> Decision:
    """Retire the disks of brokers that are not alive."""
    try:
        lost = [dead_broker(state, node, rules) for node in request.nodes]
        if state.feature_level < MOVING_REPLICAS:
            raise Rejected(too_low(state, "brokers can be declared lost"), ErrorCode.UNSUPPORTED_VERSION)
    except Rejected as error:
        return Decision((Result(error.code, error.message),))
    reason = request.reason[:REASON_LENGTH_MAX] or "no reason given"
    commands: list[AnyCommand] = []
    for broker in lost:
        if not broker.is_lost:
            stands_for_none = Incarnation(LOST_PREFIX + rules.new_topic_id()[len(LOST_PREFIX) :])
            number = int.from_bytes(stands_for_none[-4:], "big") & 0x7FFF_FFFF or 1
            commands.append(
                BrokerReplaced(
                    broker.node,
                    broker.incarnation,
                    stands_for_none,
                    broker.profile,
                    replacement=number,
                    reason=reason,
                    version=1,
                )
            )
    return Decision((Result(),), tuple(commands))


def dead_broker(state: ControllerState, node: NodeId, rules: Rules) -> BrokerState:
    """A registered broker that is not alive. Raises Rejected."""
    broker = state.registry.brokers.get(node)
    if broker is None:
        raise Rejected(f"broker {node} is not registered", ErrorCode.BROKER_ID_NOT_REGISTERED)
    if not broker.fenced or node == rules.node:
        raise Rejected(
            f"broker {node} is alive, or was a moment ago: stop it permanently and wait until it counts as dead",
            ErrorCode.INVALID_REQUEST,
        )
    return broker
