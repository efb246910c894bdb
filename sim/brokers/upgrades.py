"""Simulated brokers that are upgraded one by one: releases that know less, and an operator who installs the newer one.

==  ==================================================================================================================
V1  A broker is sent no frame of a peer protocol that it does not know.
V2  A broker is given no command, and no snapshot, of a feature level that it does not know.
V3  Once all brokers run the newer release, the feature level is the newest one, and all brokers know it.
V4  An older release takes part as long as the level has not risen. Afterwards it is refused.
==  ==================================================================================================================

A `Release` is what a broker's code knows. The code of the older one is today's with the older constants: it says the
older numbers of itself, and decides and decodes by them. What older code did otherwise is not played.

The operator waits until the brokers are up and registered with what they run, then restarts the next one. One broker
goes back to the older release before the last one is upgraded, and comes forward again. When the level has risen, one
broker is started as the older release once more; it has to refuse the cluster, or the cluster it. Crashes, cuts and
pauses come in between, and a broker that crashes comes back as the release that is installed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from millstream.cluster import committed, state_files
from millstream.core.controller import brokers, commands, state
from millstream.core.controller.commands import (
    FEATURE_LEVEL,
    MANY_BROKERS,
    MOVING_REPLICAS,
    STREAMS_GROUPS,
    FeatureLevelRaised,
)
from millstream.errors import Corruption, MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.model.replication import node_of
from millstream.peers.hello import VERSION_MAX
from sim.brokers.controlled import ControlledBroker
from sim.engine.timeline import stream
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.core.controller.commands import AnyCommand
    from millstream.core.controller.state import ControllerState
    from millstream.model.cluster import FeatureLevel
    from sim.brokers.world import Broker, Cluster


class Release(NamedTuple):
    """What the code of a broker knows."""

    version_max: int
    """Newest version of the peer protocol."""
    feature_level: FeatureLevel


NEWEST: Final = Release(VERSION_MAX, FEATURE_LEVEL)
OLDER: Final = (
    Release(1, MANY_BROKERS),
    Release(1, MOVING_REPLICAS),
    Release(1, FEATURE_LEVEL),
    Release(VERSION_MAX, MANY_BROKERS),
    Release(VERSION_MAX, MOVING_REPLICAS),
    Release(VERSION_MAX, STREAMS_GROUPS),
)

_LEVEL_NAME: Final = "FEATURE_LEVEL"
"""What modules of the controller take the newest level that the code knows from."""


class _Running:
    """The broker whose code runs at the moment, as far as that matters."""

    release = NEWEST
    name = "nobody"
    may_refuse = False
    """It is older than the cluster, on purpose."""


_running = _Running()


def run_as(broker: Broker) -> None:
    """The code that runs from now on is that of a broker's release."""
    if isinstance(broker, UpgradedBroker):
        _running.name, _running.may_refuse = str(broker.replica), broker.outdated
        _become(broker.release)


def _become(release: Release) -> None:
    if release is not _running.release:
        _running.release = release
        for module in (state, brokers):
            setattr(module, _LEVEL_NAME, release.feature_level)


@contextmanager
def releases() -> Generator[None]:
    """While a history is played: code decodes as the release that runs; afterwards it is the newest one again."""
    try:
        with (
            patch.object(committed, "decode_command", _decode_command),
            patch.object(state_files, "decode_command", _decode_command),
            patch.object(state_files, "decode_state", _decode_state),
        ):
            yield
    finally:
        _running.may_refuse = False
        _become(NEWEST)


def _decode_command(data: bytes | memoryview) -> AnyCommand:
    command = commands.decode_command(data)
    _check_known(command.level if isinstance(command, FeatureLevelRaised) else commands.level_of(command), command)
    return command


def _decode_state(data: bytes | memoryview) -> ControllerState:
    with patch.object(state, _LEVEL_NAME, FEATURE_LEVEL):
        level = state.decode_state(data).feature_level
    _check_known(level, "a snapshot")
    return state.decode_state(data)


def _check_known(level: FeatureLevel, what: object) -> None:
    """V2, for code that must not meet it; code that is outdated finds out by itself."""
    known = _running.release.feature_level
    if level <= known:
        return
    if not _running.may_refuse:
        raise Violation(f"V2: {_running.name}, which knows level {known}, is given one of level {level}: {what}")
    if not isinstance(what, FeatureLevelRaised | str):
        raise Corruption("a record of the controller's log is no command that this version knows")


class UpgradedBroker(ControlledBroker):
    """A broker with a release.

    Lifecycle: as `ControlledBroker`; ``release`` changes while it is down.
    """

    release = NEWEST
    outdated = False
    """It runs an older release than the cluster needs, so that it is refused."""
    on_refused: Callable[[], None]

    def start(self) -> None:
        """Come up as the release that is installed."""
        run_as(self)
        self.version_max, self.feature_level = self.release
        self._guard(super().start)

    def step(self) -> None:
        """Do one thing."""
        self._guard(super().step)

    def wake(self) -> None:
        """Let all timers go off that are due."""
        self._guard(super().wake)

    def started(self, error: MillstreamError | None) -> None:
        """The cluster has this broker, or refuses it."""
        if error is None:
            if self.outdated:
                raise Violation(f"V4: {self.replica} is let in as {self.release}, and the cluster has a newer level")
            return
        if not self.outdated or error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise Violation(f"V4: {self.replica} is refused as {self.release}: {error}")
        self.cluster.history.seen["older release refused by the cluster"] += 1
        life = self.life
        self.cluster.after(0, lambda: self._stop(life))

    def _guard(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Corruption as error:
            if not self.outdated:
                raise Violation(f"V4: {self.replica} ends as {self.release}: {error}") from error
            self.cluster.history.seen["older release refuses the cluster"] += 1
            self._stop(self.life)

    def _stop(self, life: int) -> None:
        if self.life == life and self.outdated:
            if self.is_up:
                self.crash()
            self.on_refused()


class _Step(NamedTuple):
    """An installation."""

    broker: UpgradedBroker
    release: Release


class Upgrade:
    """The operator.

    Lifecycle: made with the cluster, whose brokers run an older release; `go_on` in each round, `finish` at its end.
    Invariant: steps are done in order, each when the one before has succeeded.
    """

    def __init__(self, cluster: Cluster, rounds: int, restart: Callable[[Broker], None], poll_us: int) -> None:
        """``restart`` lets a broker crash and come up later. The steps are spread over ``rounds``."""
        self._cluster = cluster
        self._chance = cluster.chance("upgrade")
        self._restart = restart
        self._poll_us = poll_us
        self._rounds = rounds
        self._round = 0
        self._polls = False
        found: list[Any] = list(cluster.brokers.values())
        self._brokers: list[UpgradedBroker] = found
        for broker in self._brokers:
            broker.on_refused = lambda broker=broker: self._refused(broker)
        self._older = older_of(cluster)
        self._steps = self._plan()

    def _plan(self) -> list[_Step]:
        """All brokers in some order; one of them goes back and comes forward again before the last one."""
        order = list(self._brokers)
        self._chance.shuffle(order)
        steps = [_Step(one, NEWEST) for one in order]
        back = self._chance.randrange(len(order) - 1)
        at = self._chance.randint(back + 1, len(order) - 1)
        steps.insert(at, _Step(order[back], self._older))
        steps.insert(self._chance.randint(at + 1, len(steps)), _Step(order[back], NEWEST))
        return steps

    def go_on(self) -> None:
        """A round starts: do some steps in it. Before the last round all are done."""
        self._round += 1
        if self._round == self._rounds:
            self._begin_refused()
        if not self._polls:
            self._polls = True
            self._later()

    def _later(self) -> None:
        self._cluster.after(1 + self._chance.randrange(self._poll_us), self._poll)

    def _poll(self) -> None:
        if self._polls:
            self._later()
            if self._steps and self._is_healthy():
                self._do(self._steps.pop(0))

    def _do(self, step: _Step) -> None:
        name = "upgrade" if step.release is NEWEST else "return to the older release"
        self._cluster.history.seen[name] += 1
        self._restart(step.broker)
        step.broker.release = step.release

    def _begin_refused(self) -> None:
        if self._older.feature_level < FEATURE_LEVEL:
            broker = self._chance.choice(self._brokers)
            self._cluster.after(1 + self._chance.randrange(2 * self._poll_us), lambda: self._make_outdated(broker))

    def _make_outdated(self, broker: UpgradedBroker) -> None:
        if broker.is_up and broker not in self._cluster.paused:
            self._cluster.history.seen["older release started too late"] += 1
            self._restart(broker)
            broker.release, broker.outdated = self._older, True

    def _refused(self, broker: UpgradedBroker) -> None:
        """Install the newer release on a broker that has ended."""
        broker.release, broker.outdated = NEWEST, False

        def start() -> None:
            if not broker.is_up:
                broker.start()

        self._cluster.after(self._poll_us, start)

    def _is_healthy(self) -> bool:
        """Whether all brokers are up, and every one knows all of them as what they run."""
        paused = self._cluster.paused
        return all(one.is_up and one not in paused and self._is_known(one) for one in self._brokers)

    def _is_known(self, broker: UpgradedBroker) -> bool:
        node = node_of(broker.replica)
        for other in self._brokers:
            known = next((one for number, one in other.cache.state.registry.brokers.items() if number == node), None)
            if known is None or known.fenced or known.profile.feature_level != broker.release.feature_level:
                return False
        return True

    def finish(self, limit_us: int) -> None:
        """After a heal. From the last round but one on all steps are done by then, the level has risen (V3), and a
        broker that was started as the older release has been refused (V4).
        """
        if self._round < self._rounds - 1:
            self._polls = False
            return
        if not self._cluster.run(lambda: not self._steps and self._is_healthy(), limit_us * (2 + len(self._steps))):
            left = [(one.replica, one.is_up, one.release, one.outdated) for one in self._brokers]
            raise Violation(f"G5: the upgrade does not end: {self._steps}, {left}")
        self._polls = False
        if not self._cluster.run(self._has_risen, limit_us):
            levels = [one.cache.state.feature_level for one in self._brokers]
            raise Violation(f"V3: all brokers run the newer release, and the cluster has the levels {levels}")
        if any(one.outdated for one in self._brokers):
            raise Violation("V4: a broker goes on as the older release")
        self._cluster.history.seen["feature level risen after an upgrade"] += 1

    def _has_risen(self) -> bool:
        return all(one.cache.state.feature_level == FEATURE_LEVEL for one in self._brokers)


def older_of(cluster: Cluster) -> Release:
    """The release that the brokers of a cluster start as."""
    return stream(cluster.seed, "older release").choice(OLDER)


def upgraded(cluster: Cluster, node_id: int) -> UpgradedBroker:
    """Make a broker for `Cluster`, with the older release."""
    broker = UpgradedBroker(cluster, node_id)
    broker.release = older_of(cluster)
    cluster.on_turn = run_as
    return broker
