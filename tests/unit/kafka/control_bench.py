"""Handlers of the control plane over a real controller, cache and mailbox; requests and answers pass the codec."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "cluster"))

from cluster_world import World

from millstream.kafka.handlers.admin import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from millstream.kafka.handlers.data import metadata
from millstream.kafka.served import SERVED, handler_module
from millstream.wire.apis import APIS
from millstream.wire.codec import decode_request, decode_response, encode_request, encode_response
from millstream.wire.schema import Request

HANDLERS = {
    key: module
    for key, row in SERVED.items()
    for module in (
        alter_configs,
        create_partitions,
        create_topics,
        delete_topics,
        describe_cluster,
        describe_configs,
        incremental_alter_configs,
        list_config_resources,
        metadata,
    )
    if handler_module(row) == module.__name__
}


class Context:
    """What a handler needs of a request's context; keeps the one answer."""

    def __init__(self, api_key: int, api_version: int) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.api = SimpleNamespace(name=APIS[api_key].name)
        self.principal, self.host = "User:ANONYMOUS", "10.0.0.9"
        self.local_host = "10.0.0.7"
        self.local_port = 9092
        self.listener = "PLAINTEXT"
        self.connection = SimpleNamespace(
            intake=SimpleNamespace(turns=SimpleNamespace(work_off=lambda _, steps: deque(steps, maxlen=0))),
            closed=False,
        )
        self.bodies: list[bytes] = []

    @property
    def done(self) -> bool:
        return bool(self.bodies)

    def hold(self) -> None:
        """Nothing more is asked here before the answer."""

    def mutation_client(self, strict_from: int) -> None:
        """There are no quotas."""

    def throttle(self, wait_ms: int) -> None:
        assert not wait_ms

    def respond(self, message: Any) -> None:
        self.bodies.append(bytes(encode_response(message, self.api_version)))

    def respond_encoded(self, body: bytes) -> None:
        self.bodies.append(bytes(body))

    def respond_around(self, before: bytes, shared: Any, after: bytes) -> None:
        self.respond_encoded(before + shared.data + after)


class ControlBench:
    """One node and a client that speaks every version."""

    def __init__(self, shards: int = 2, **settings: object) -> None:
        self.world = World(shards, **settings).start()
        self.recorded: list[tuple[Any, ...]] = []
        self.audit = SimpleNamespace(changed=lambda *facts: self.recorded.append(facts))

    def node(self, shard: int = 1) -> Any:
        each = self.world.nodes[shard]
        return SimpleNamespace(
            metadata=each.cache,
            controller=each.client,
            settings=self.world.settings,
            access=SimpleNamespace(audit=self.audit),
        )

    def begin(self, request: Request, version: int, shard: int = 1) -> Context:
        """Hand the request to its handler, without letting anything else happen."""
        body = bytes(encode_request(request, version))
        decoded = decode_request(type(request).API_KEY, version, body, 0, len(body))
        context: Any = Context(type(request).API_KEY, version)
        HANDLERS[context.api_key].handle(self.node(shard), context, decoded)
        return context

    def end(self, context: Context) -> Any:
        """The answer, of which there must be exactly one."""
        (body,) = context.bodies
        return decode_response(context.api_key, context.api_version, body, 0, len(body))

    def ask(self, request: Request, version: int | None = None, shard: int = 1) -> Any:
        context = self.begin(request, type(request).VERSIONS[1] if version is None else version, shard)
        self.world.run()
        return self.end(context)

    def create(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """Create a topic; its id."""
        answers = self.world.create(name, partitions, **configs)
        self.world.run()
        return answers[0][0].topic_id


def versions(cls: type[Request]) -> range:
    low, high = cls.VERSIONS
    return range(low, high + 1)
