"""This broker's membership: it registers with the controller, says that it is alive, and says that it stops.

::

    start ──► register, until answered ──► registered and unfenced, applied here ──► ready ──beats──► leave

**Bad input.** A refused registration ends the start with the controller's sentence; only a broker that replaces another
one waits, because that one may still count as alive. **Crash.** A registration whose answer was lost is repeated and
starts a new epoch. **Overload.** One registration is in flight at a time. Without a leader nothing is sent.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from millstream.cluster.joining import Joining
from millstream.core.controller.requests import FenceBroker, encode_request
from millstream.errors import MillstreamError, Rejected
from millstream.model.cluster import BrokerEpoch, NodeId, Revision
from millstream.model.error_code import ErrorCode
from millstream.peers.items import Status
from millstream.peers.network import Network
from millstream.shard.reactor import Reactor
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache
    from millstream.cluster.own_shards import Done
    from millstream.core.controller.requests import AnyRequest, RegisterBroker, Results
    from millstream.peers.hello import Seed
    from millstream.peers.network import Network
    from millstream.shard.reactor import Reactor

CONTROLLER_REQUEST: Final = 1
"""Method of ``peers.calls``: a request to the controller."""

BEAT_US: Final = 500_000
"""A tenth of the time after which a silent broker is fenced."""

FENCE_US: Final = 10_000_000
"""How long a broker that replaces another one waits until that one is fenced."""

START_US: Final = 50_000
"""Between attempts to register while the broker starts."""


class Controller(Protocol):
    """What a registration needs of this broker's part of the controller."""

    @property
    def leader(self) -> NodeId | None: ...

    @property
    def settled_revision(self) -> Revision: ...

    def submit(self, request: AnyRequest, done: Done) -> None: ...


class _Stage(enum.Enum):
    STARTING = enum.auto()
    READY = enum.auto()
    """The registration and the unfencing are applied here."""
    LEAVING = enum.auto()
    """No beat is sent from now on."""


class OwnRegistration:
    """The registration of this broker, and the beats that keep it alive.

    Shard: the controller's. Invariant: ``_ready`` is set only from ``start`` until it is called, once.
    """

    def __init__(
        self,
        controller: Controller,
        reactor: Reactor,
        network: Network,
        cache: MetadataCache,
        request: RegisterBroker,
        contacts: dict[NodeId, Seed] | None,
    ) -> None:
        """``contacts`` are brokers of the cluster, for one that joins it."""
        self._controller = controller
        self._reactor = reactor
        self._network = network
        self._cache = cache
        self.request = request
        self._joining = Joining(network, contacts, CONTROLLER_REQUEST) if contacts else None
        self._epoch: BrokerEpoch | None = None
        """None until the registration is answered."""
        self._in_flight = False
        self._refused_count = 0
        self._ready: Callable[[MillstreamError | None], None] | None = None
        self._stage = _Stage.STARTING

    @property
    def node(self) -> NodeId:
        return self.request.node

    @property
    def was_ready(self) -> bool:
        """Whether commits are new, and not those from before this broker's start."""
        return self._stage is not _Stage.STARTING

    @property
    def is_leaving(self) -> bool:
        return self._stage is _Stage.LEAVING

    @property
    def interval_us(self) -> int:
        """Time until `tick` is due again."""
        return START_US if self._ready is not None else BEAT_US

    def start(self, done: Callable[[MillstreamError | None], None]) -> None:
        """``done`` is called when the cluster has this broker, or with the reason why it refuses it."""
        self._ready = done

    def refuse(self, message: str) -> bool:
        """End the start with this reason; False if the broker is not starting."""
        if self._ready is None:
            return False
        self._end_start(Rejected(message, ErrorCode.DUPLICATE_BROKER_REGISTRATION))
        return True

    def leave(self, done: Callable[[], None]) -> None:
        """This broker stops: let the controller take it for not alive at once, instead of after some silence. ``done``
        is called in any case, soon.
        """
        self._stage = _Stage.LEAVING
        tell_leaving(
            self._reactor,
            self._network,
            CONTROLLER_REQUEST,
            self.node,
            self._epoch,
            lambda: self._controller.leader,
            done,
        )

    def tick(self) -> None:
        """Register, or report that this broker is alive."""
        if self._epoch is None:
            self._register()
        else:
            self._beat(self._epoch)

    def _register(self) -> None:
        leader = self._controller.leader
        if self._in_flight or (leader is None and self._joining is None):
            return
        self._in_flight = True
        if leader is None and self._joining is not None:
            self._joining.register(self.request, self._registered)
        else:
            self._controller.submit(self.request, self._registered)

    def _registered(self, results: Results | MillstreamError) -> None:
        self._in_flight = False
        if isinstance(results, MillstreamError):
            return  # asked again at the next tick
        result = results[0]
        if not result.error:
            self._epoch = result.broker_epoch
        elif result.error == ErrorCode.DUPLICATE_BROKER_REGISTRATION and self._waits_for_fence():
            operator_log.info("%s", result.message)
        elif result.error != ErrorCode.BROKER_NOT_AVAILABLE and self._ready is not None:
            self._end_start(Rejected(result.message or "the cluster refuses this broker", result.error))

    def _waits_for_fence(self) -> bool:
        """Whether this broker takes the place of one that may still count as alive, because it died just now."""
        self._refused_count += 1
        return self.request.replace and self._refused_count * START_US < FENCE_US

    def _beat(self, epoch: BrokerEpoch) -> None:
        leader = self._controller.leader
        if leader is not None and leader != self.node:
            status = Status(epoch, self._controller.settled_revision, self._reactor.wall_ms())
            self._network.say(leader, status)

    def check_ready(self) -> None:
        """This broker has applied what is committed: end the start if that has its registration and unfencing."""
        if self._ready is None or self._epoch is None:
            return
        broker = self._cache.state.registry.brokers.get(self.node)
        if broker is not None and broker.epoch == self._epoch and not broker.fenced:
            if self._stage is _Stage.STARTING:
                self._stage = _Stage.READY
            self._end_start(None)

    def _end_start(self, reason: MillstreamError | None) -> None:
        assert self._ready is not None
        ready, self._ready = self._ready, None
        ready(reason)


LEAVE_US: Final = 500_000
"""A broker that stops waits so long for a controller that can be asked."""

LEAVE_ANSWER_US: Final = 5_000_000
"""And so long for the answer, which takes a sync on a majority of the brokers, or two if the controller is new."""

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
    """Ask the ``leader`` of the moment, by a call of ``method``, to fence this broker at once instead of after some
    silence. A call that fails is repeated. ``done`` is called once, in any case soon after ``LEAVE_ANSWER_US``.
    ``epoch`` is that of its registration.
    """
    began_us = reactor.now_us()

    def tell() -> None:
        found = leader()
        if epoch is None or found == node:  # a sole voter keeps leading
            done()
        elif found is None:  # the one that this broker handed over to has not spoken yet
            again(LEAVE_US)
        else:
            request = encode_request(FenceBroker(node, epoch))
            network.calls.call(found, method, request, LEAVE_ANSWER_US // 1000, answered)

    def answered(answer: bytes | MillstreamError) -> None:
        if not isinstance(answer, MillstreamError):
            done()
        else:  # a new controller decides when its first entry is committed
            again(LEAVE_ANSWER_US if answer.code == ErrorCode.NOT_CONTROLLER else LEAVE_US)

    def again(limit_us: int) -> None:
        if reactor.now_us() < began_us + limit_us:
            reactor.call_later(LEAVE_RETRY_US, tell)
        else:
            done()

    tell()
