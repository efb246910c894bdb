"""What a suite is to the runner: it is prepared once, names its tests, and yields an outcome for each that it ran."""

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from conformance import brokers
from conformance.lists import Outcome


@dataclass
class Context:
    """What a suite may use while it runs.

    ``chosen`` are the tests to run, ``logs`` is where their output is kept, ``scratch`` is gone afterwards. ``broker``
    starts a broker with the settings given, or with ``count`` 3 a cluster in which topics have three replicas;
    ``patience`` multiplies time limits for a slow machine.
    """

    peer: str | None
    chosen: Collection[str]
    logs: Path
    scratch: Path
    say: Callable[[str], None]
    jobs: int = 1
    patience: float = 1.0
    count: int = 1
    complaints: list[str] = field(default_factory=list[str])
    """ERROR lines of all brokers of the suite."""

    def broker(self, settings: Mapping[str, str] | None = None) -> AbstractContextManager[brokers.Served]:
        if self.count > 1:
            return self._cluster({**brokers.REPLICATED, **(settings or {})})
        return self._broker(settings or {})

    def cluster(self, settings: Mapping[str, str] | None = None) -> AbstractContextManager[brokers.RunningCluster]:
        """Starts three brokers of ours; a suite for the peer can't have them."""
        return self._cluster(settings or {})

    @contextlib.contextmanager
    def _broker(self, settings: Mapping[str, str]) -> Generator[brokers.Running]:
        with brokers.running(self.peer, settings, self.logs / "broker.log") as broker:
            try:
                yield broker
            finally:
                self._judge(broker)

    @contextlib.contextmanager
    def _cluster(self, settings: Mapping[str, str]) -> Generator[brokers.RunningCluster]:
        with brokers.running_cluster(settings, self.logs / "broker.log") as three:
            try:
                yield three
            finally:
                self._judge(three)

    def _judge(self, broker: brokers.Served) -> None:
        if broker.revive():
            self.complaints.append("the broker ended by itself")
        self.complaints += broker.complaints()


class Suite:
    """One suite of tests.

    ``prepare`` fetches and builds what it needs, returns its version and may raise ``SuiteUnavailable``; after it
    ``names`` lists the tests. ``run`` yields outcomes as they come, for the chosen tests only.
    """

    name: str
    about: str
    fast: bool = True
    """Whether any of it belongs to the fast part."""

    def prepare(self) -> str:
        raise NotImplementedError

    def names(self) -> list[str]:
        raise NotImplementedError

    def is_fast(self, name: str) -> bool:
        """Whether a test belongs to the fast part that every change can afford."""
        _ = name
        return True

    def run(self, context: Context) -> Iterator[Outcome]:
        raise NotImplementedError
