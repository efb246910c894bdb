"""librdkafka's tests that want three brokers, from its own test-runner: transactions above all.

They make topics with three replicas, and the one of topics that are made again waits for every broker to know it.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from conformance import tools
from conformance.librdkafka import Librdkafka
from conformance.lists import Outcome
from conformance.suite import Context
from conformance.tools import SuiteUnavailable

WANTED = ("0098_consumer_txn", "0103_transactions", "0107_topic_recreate", "0111_delay_create_topics")


class LibrdkafkaCluster(Librdkafka):
    """The suite; its tests run one after the other, as each uses all brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "librdkafka-cluster"
        self.about = "librdkafka's tests for three brokers"

    def names(self) -> list[str]:
        known = {entry.name for entry in self.entries}
        return [name for name in WANTED if name in known]

    def is_fast(self, name: str) -> bool:
        return name == "0103_transactions"

    def prepare(self) -> str:
        tools.need("javac")
        return super().prepare()

    def furnish(self, place: Path) -> None:
        """0098 has a Java program write transactions. The suite compiles it where it runs, with ``make java``."""
        shutil.copytree(self.folder / "tests" / "java", place / "java", dirs_exist_ok=True)
        (place / "Makefile").write_text("java: .PHONY\n\tmake -C java\n.PHONY:\n", encoding="utf-8")

    def run(self, context: Context) -> Iterator[Outcome]:
        if context.peer:
            raise SuiteUnavailable("the peer is a single broker")
        yield from self.run_in(context, context.cluster)
