"""A controller in a test: state and rules of one node, and a way to make requests come true."""

from collections.abc import Callable

import msgspec

from millstream.config.settings import Settings
from millstream.core.controller.commands import ClusterCreated
from millstream.core.controller.configs import effective_settings
from millstream.core.controller.decide import Decision, decide
from millstream.core.controller.requests import AnyRequest, CreateTopic, CreateTopics, Result
from millstream.core.controller.rules import Rules
from millstream.core.controller.state import ControllerState


def counting_ids() -> Callable[[], bytes]:
    last = 0

    def next_id() -> bytes:
        nonlocal last
        last += 1
        return last.to_bytes(16, "big")

    return next_id


class Bench:
    """One node's controller without a log: what is decided comes true at once."""

    def __init__(self, brokers: tuple[int, ...] = (1,), **settings: object) -> None:
        self.state = ControllerState()
        self.state.apply(ClusterCreated("MkU3OEVBNTcwNTJENDM2Qk", 1))
        start = Settings(data_dir="/unused", shards=1, node_id=1, **settings)
        self.rules = Rules(1, brokers, start, start, counting_ids())

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
