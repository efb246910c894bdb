"""librdkafka's tests of share groups (0170 to 0185), from its own test-runner.

The runner takes them only for a broker that it believes to be as new as share groups. The other suites of librdkafka
tell it of an older one, so these have a suite of their own. 0179 takes for granted that the two partitions of its topic
are on two brokers, so it gets a cluster of ours.
"""

import dataclasses
from collections.abc import Iterator

from conformance.librdkafka import Librdkafka
from conformance.lists import SKIPPED, Outcome
from conformance.suite import Context

NUMBERS = range(170, 186)
OF_A_CLUSTER = "0179_share_consumer_destroy"
SETTINGS = {"group.share.min.record.lock.duration.ms": "1000"}
"""As librdkafka's own script starts its brokers: tests wait for the end of locks of three seconds."""


class LibrdkafkaShare(Librdkafka):
    """The tests of share groups that talk to a broker."""

    kafka_version = "4.2.0"
    modes = ("",)
    """Quick mode leaves nearly all subtests out, without a word."""
    limit_s = 300.0

    def __init__(self) -> None:
        super().__init__()
        self.name = "librdkafka-share"
        self.about = "librdkafka's tests of share groups"
        self.fast = False

    def names(self) -> list[str]:
        return [entry.name for entry in self.entries if int(entry.number) in NUMBERS]

    def run(self, context: Context) -> Iterator[Outcome]:
        alone = dataclasses.replace(context, chosen=set(context.chosen) - {OF_A_CLUSTER})
        yield from self.run_in(alone, lambda settings: context.broker({**SETTINGS, **settings}))
        if OF_A_CLUSTER in context.chosen and context.peer:
            yield Outcome(OF_A_CLUSTER, SKIPPED, reason="the peer is a single broker")
        elif OF_A_CLUSTER in context.chosen:
            scratch = context.scratch / "cluster"
            scratch.mkdir()
            together = dataclasses.replace(context, chosen={OF_A_CLUSTER}, scratch=scratch)
            yield from self.run_in(together, lambda settings: context.cluster({**SETTINGS, **settings}))
