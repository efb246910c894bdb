"""A controller in a test: state and rules of one node, and a way to make requests come true."""

from collections.abc import Callable

import msgspec

from millstream.config.settings import Settings
from millstream.core.controller.commands import ClusterCreated
from millstream.core.controller.configs import effective_settings
from millstream.core.controller.decide import Decision, decide
from millstream.core.controller.profile import BrokerProfile, ListenerAddress, PeerAddress
from millstream.core.controller.requests import (
    AnyRequest,
    CreateTopic,
    CreateTopics,
    FenceBroker,
    RegisterBroker,
    Result,
    UnfenceBroker,
    decode_request,
    encode_request,
)
from millstream.core.controller.rules import Rules
from millstream.core.controller.state import ControllerState
from millstream.model.cluster import FeatureLevel, Incarnation, NodeId


def disk(number: int) -> Incarnation:
    """The incarnation of a data directory."""
    return Incarnation(number.to_bytes(16, "big"))


def profile_of(node: int, level: int = 1) -> BrokerProfile:
    """What broker ``node`` says about itself in these tests."""
    listeners = (ListenerAddress("PLAINTEXT", f"host-{node}", 9092),)
    return BrokerProfile(listeners, PeerAddress(f"host-{node}", 33145), "", 1, "0.1.0", FeatureLevel(level))


def counting_ids() -> Callable[[], bytes]:
    last = 0

    def next_id() -> bytes:
        nonlocal last
        last += 1
        return last.to_bytes(16, "big")

    return next_id


class Bench:
    """One node's controller without a log: what is decided comes true at once."""

    def __init__(self, brokers: tuple[int, ...] = (), level: int = 1, **settings: object) -> None:
        self.level = level
        self.state = ControllerState()
        self.state.apply(ClusterCreated("MkU3OEVBNTcwNTJENDM2Qk", 1))
        start = Settings(data_dir="/unused", shards=1, node_id=1, **settings)
        self.rules = Rules(1, start, start, counting_ids())
        for node in brokers:
            self.join(node)

    def decide_registration(self, node: int, **changes: object) -> Decision:
        """The decision on a broker's registration; ``changes`` are of the request or of the broker's profile."""
        names = {field.name for field in msgspec.structs.fields(BrokerProfile)}
        profile = msgspec.structs.replace(
            profile_of(node, self.level), **{k: v for k, v in changes.items() if k in names}
        )
        request = RegisterBroker("", NodeId(node), disk(abs(node)), profile)
        request = msgspec.structs.replace(request, **{k: v for k, v in changes.items() if k not in names})
        return self.decide(decode_request(encode_request(request)))

    def register(self, node: int, **changes: object) -> Result:
        """The answer to a broker's registration, which comes true."""
        decision = self.decide_registration(node, **changes)
        for command in decision.commands:
            self.state.apply(command)
        return decision.results[0]

    def join(self, node: int, **changes: object) -> None:
        """A broker registers and is alive."""
        result = self.register(node, **changes)
        assert not result.error, result.message
        assert not self.do(UnfenceBroker(NodeId(node), result.broker_epoch))[0].error

    def fence(self, node: int) -> None:
        """A broker falls silent."""
        assert not self.do(FenceBroker(NodeId(node), self.state.registry.brokers[NodeId(node)].epoch))[0].error

    def decide(self, request: AnyRequest) -> Decision:
        return decide(self.state, request, self.rules)

    def do(self, request: AnyRequest) -> tuple[Result, ...]:
        decision = self.decide(request)
        for command in decision.commands:
            self.state.apply(command)
        settings = effective_settings(self.state, self.rules.start_settings, 1)
        self.rules = msgspec.structs.replace(self.rules, settings=settings)
        return decision.results

    def create(self, *topics: CreateTopic | str) -> tuple[Result, ...]:
        return self.do(CreateTopics(tuple(CreateTopic(t, 1, 1) if isinstance(t, str) else t for t in topics)))
