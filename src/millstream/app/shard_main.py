"""One shard process: build its parts in order, serve, drain, stop.

The order is fixed by what stands on what: helper processes are forked first (before there is a loop and before this
process is pinned or given real-time priority, or they would share both), then reactor and mailbox, metadata, storage
and logs, partitions, coordinators, the Kafka edge, and last the intake of connections. Everything is open when the
shard says that it is ready; the supervisor hands out connections when all shards have.

A crash anywhere in here ends the process, and with it the broker; what it owes to clients is in the write-ahead log.
"""

import importlib
import os
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from millstream.app.address_limits import OPEN_BY_ADDRESS
from millstream.app.archiving import Starts, make_archiver, starts_of
from millstream.app.audit_file import AUDIT
from millstream.app.broker_mode import BrokerModeListener
from millstream.app.client_edge import ClientEdge
from millstream.app.cluster_changes import serve_changes
from millstream.app.cluster_status import OwnParts, serve_cluster_status
from millstream.app.controller_part import join_controller
from millstream.app.first_user import serve_first_user
from millstream.app.http_callers import serve_callers
from millstream.app.limits import TellSupervisor
from millstream.app.log_in_store import LogInStore
from millstream.app.log_levels import serve_loggers
from millstream.app.overview import serve_overview
from millstream.app.partitions import Partitions
from millstream.app.peer_shard import PeerShard
from millstream.app.recovering import serve_recovery
from millstream.app.repairs import serve_repairs
from millstream.app.service import BEGIN_ANEW
from millstream.app.shared import Shared
from millstream.app.tiers import serve_tiers
from millstream.app.tls import NEW_CREDENTIALS
from millstream.app.unclean_cuts import UncleanCuts
from millstream.cluster.client import ControllerClient
from millstream.cluster.controller import Controller, controller_log_config
from millstream.cluster.failed_replicas import FailedReplicas
from millstream.cluster.follower import Follower
from millstream.cluster.group_members import GroupMembers
from millstream.cluster.leading_brokers import LeadingBrokers
from millstream.cluster.metadata import MetadataCache
from millstream.cluster.producer_ids import ProducerIds
from millstream.cluster.quorum_controller import QuorumController
from millstream.cluster.snapshots import Snapshots
from millstream.cluster.state_files import SnapshotStore
from millstream.cluster.throttles import Throttles
from millstream.cluster.transfers import Transfers
from millstream.config.listeners import PEER_LISTENER
from millstream.config.settings import Settings
from millstream.coordinator.across_brokers import AcrossBrokers
from millstream.coordinator.end_offsets import EndOffsets
from millstream.coordinator.finding import Coordinators
from millstream.coordinator.router import GroupRouter
from millstream.coordinator.share_states import ShareStates
from millstream.coordinator.streams_topics import StreamsTopics
from millstream.coordinator.topics_view import everybody_may
from millstream.coordinator.transactions import Transactions
from millstream.core.controller.topic_names import GROUP_METADATA, SHARE_GROUP_STATE, TRANSACTION_STATE
from millstream.core.fetch_session import FetchSessions, SessionPartition
from millstream.errors import MillstreamError, Rejected
from millstream.format.events.chunk import partition_uuid
from millstream.format.names import partition_directory
from millstream.kafka.access import Access, controls_access
from millstream.kafka.acknowledgements import Acknowledgements
from millstream.kafka.audit import REFUSE, Audit, keeps_audit
from millstream.kafka.context import Node
from millstream.kafka.loggers import Loggers
from millstream.kafka.telemetry import Telemetry
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.model.quantities import ShardId
from millstream.model.replication import replica_id
from millstream.partition.append.admission import Admission
from millstream.partition.append.internal import InternalLogs
from millstream.partition.append.open_transactions import OpenTransactions
from millstream.partition.append.timeouts import AckTimeouts
from millstream.partition.events.home import EventsHome
from millstream.partition.hop.admin import AdminHome
from millstream.partition.hop.home import Home
from millstream.partition.lifecycle import Lifecycle, next_term
from millstream.partition.read.manifest import describe_partitions
from millstream.partition.read.watch import Watch
from millstream.partition.replica.full_disk import FullDisk
from millstream.partition.replica.in_sync import InSync
from millstream.partition.table import PartitionTable
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.secure.endpoint import Credentials
from millstream.shard.context import Shard
from millstream.shard.control import ControlEnd
from millstream.shard.handover import Arrival
from millstream.shard.mailbox import Mailbox
from millstream.shard.process import EXIT_CHILD, EXIT_OK, EXIT_UNAVAILABLE, become_realtime, core_of, cores, pin
from millstream.shard.reactor import Reactor
from millstream.shard.stall import dump_on_signal
from millstream.share.home import SharePartitions
from millstream.share.moves import Moves
from millstream.share.seats import Seats
from millstream.share.sessions import ShareSessions
from millstream.storage.processes.start import start_processes
from millstream.storage.shard_storage import ShardStorage
from millstream.telemetry.log import log

READY_TIMEOUT_US: Final = 60_000_000
LOADING_US: Final = 10_000_000
"""Groups that take longer to load than this are loaded while the broker serves."""

CONTROLLER_SHARD: Final = 0
_CACHE: Final = "CacheMemory.take"
"""Where the log cache allocates; its fragments live as long as the shard."""


def main(shared: Shared, shard_id: int) -> int:
    """The shard's process from fork to end; returns its exit code."""
    settings = shared.settings
    own, arenas = shared.shards[shard_id], shared.arenas
    stats = own.stats
    log.who(f"shard {shard_id}", stats["shard"])
    dump_on_signal()
    storage_processes = start_processes(ShardId(shard_id), own.arena, shared.disk, settings, stats)
    starts = starts_of(shared, shard_id, cores())
    if settings.shard_pinning:
        pin_to_own_core(shard_id)
    if settings.shard_realtime:
        become_realtime()
    reactor = Reactor(ShardId(shard_id), stats["shard"])
    mailbox = Mailbox(ShardId(shard_id), shared.mesh, reactor, arenas)
    shard = Shard(ShardId(shard_id), settings.shards, reactor, arenas, mailbox, stats["shard"])
    storage = ShardStorage(shard, settings, shared.disk, settings.data_dir, storage_processes)
    try:
        ShardProcess(shared, shard, storage, starts).open()
    except (MillstreamError, OSError) as error:  # one partition would only not be served
        log.error("the data in %s could not be opened: %s", settings.data_dir, error)
        return EXIT_UNAVAILABLE
    return reactor.run()


class ShardProcess:
    """The parts of one shard and how they hang together.

    Lifecycle: ``open`` before the reactor runs; then the control channel says when to start and to stop.
    """

    def __init__(self, shared: Shared, shard: Shard, storage: ShardStorage, starts: Starts) -> None:
        settings = shared.settings
        cluster = shared.cluster
        self.shared = shared
        self.shard = shard
        self.storage = storage
        self.control: ControlEnd | None = None
        """To the supervisor, from ``open`` on."""
        self.metadata = MetadataCache(cluster.state, cluster.placement.homes, settings)
        self.metadata.http_endpoint = shared.bound.http_url
        self.follower = Follower(shard, self.metadata)
        self.client = ControllerClient(shard, self.metadata)
        if shared.identity is not None:
            self.follower.settle = storage.wal.when_durable
        self.table = PartitionTable()
        clean = shared.recovered.clean
        self.admission = Admission(shard.reactor, storage)
        self.peers = None if shared.identity is None else PeerShard(shared, shard, self.metadata, shared.identity)
        groups = None if self.peers is None else self.peers.raft
        self.lifecycle = Lifecycle(
            shard, self.metadata.settings, storage, self.table, self.admission, clean=clean, groups=groups
        )
        self.archiver, self.sweeps = make_archiver(
            shared,
            shard,
            storage,
            self.metadata,
            self.metadata.description,
            starts,
            self.peers and self.peers.network.calls,
            self._log_is_sealed,
        )
        self.lifecycle.archiver = self.archiver
        me = replica_id(settings.node_id) if self.peers is None else self.peers.me
        self.partitions = Partitions(
            shard, storage, self.metadata, self.follower, self.table, self.lifecycle, self._existed, me
        )
        self.controller = self._open_controller(clean=clean) if shard.id == CONTROLLER_SHARD else None
        self.node = self._node(settings)
        audit = Audit(shard, refuses=settings.audit_on_overflow == REFUSE) if keeps_audit(settings) else None
        if self.node.access is not None:
            self.node.access.audit = audit
        self.clients = ClientEdge(shared, shard, self.node, audit)
        self.log_in_store = self._join_take_overs()

    def _join_take_overs(self) -> LogInStore | None:
        """The log in the store of a broker of a cluster (``shared.wal=object``); None without one."""
        wal = None if self.archiver.shared is None else self.archiver.shared.wal
        if wal is None or self.peers is None:
            return None
        controller = self.controller if isinstance(self.controller, QuorumController) else None
        return LogInStore(self.shard, self.table, wal, self.metadata, controller, self._begin_anew)

    def _existed(self, topic_id: bytes, index: int) -> bool:
        if self.peers is None:
            return False
        directory = partition_directory(self.shared.settings.data_dir, topic_id, index)
        events = str(partition_uuid(topic_id, PartitionIndex(index)))
        try:
            names = self.shared.disk.list(os.path.dirname(directory))
        except FileNotFoundError:
            return False
        return any(name == str(index) or name.endswith(events) for name in names)

    def _open_controller(self, *, clean: bool) -> Controller | QuorumController:
        """Raft group 0, whose home is this shard."""
        shared, shard = self.shared, self.shard
        settings = shared.settings
        replicated = self.peers is not None
        segment_bytes = settings.internal_controller_segment_bytes if replicated else None
        opened = self.storage.registry.open_controller_log(
            controller_log_config(settings, segment_bytes),
            clean=clean,
            replicated=replicated,
            expected=replicated and self.metadata.state.exists,
        )
        if self.peers is not None:
            return join_controller(
                shared, shard, self.storage, self.metadata, self.follower, self.peers, opened, self._begin_anew
            )
        group = SoleVoterGroup(opened, next_term(opened, self.storage.term, clean=clean))
        store = SnapshotStore(shared.disk, settings.data_dir)
        snapshots = Snapshots(
            shard.reactor,
            self.metadata,
            store,
            opened,
            shared.disk,
            settings.data_dir,
            shared.cluster.placement,
            settings.controller_snapshot_ms * 1000,
        )
        return Controller(shard, group, self.metadata, self.follower, shared.cluster.placement, snapshots)

    def _node(self, settings: Settings) -> Node:
        """What the handlers see."""
        shard, metadata, table = self.shard, self.metadata, self.table
        home = Home(shard, table, self.admission)
        producer_ids = ProducerIds(self.client, shard.reactor)
        logs = InternalLogs(table)
        access = Access(settings, metadata) if controls_access(settings) else None
        may_describe = everybody_may if access is None else access.may_describe
        coordinator = GroupRouter(shard, settings, metadata, self.client, logs, may_describe)
        coordinators = Coordinators(shard, metadata)
        end_offsets = EndOffsets(metadata, table, home.lookups)
        write_marker = home.markers.write
        across = transfers = None
        if self.peers is not None:
            calls = self.peers.network.calls
            transfers = Transfers(shard, metadata, self.peers.network, self.peers.raft.groups.get)
            across = AcrossBrokers(calls, metadata, write_marker)
            write_marker = across.write
            coordinators.across(calls)
            end_offsets.across(calls)
        next_id = producer_ids.next
        transactions = Transactions(shard, settings, metadata, self.client, logs, write_marker, next_id, across)
        coordinators.add(GROUP_METADATA, coordinator.local.partitions, coordinator.local.loads)
        coordinators.add(TRANSACTION_STATE, transactions.partitions, transactions.loads)
        share_states = ShareStates(shard, metadata, self.client, logs)
        if self.peers is not None:
            share_states.across(self.peers.network.calls)
        coordinators.add(SHARE_GROUP_STATE, share_states.partitions, share_states.loads)
        coordinator.local.ask_states = share_states.ask
        share_partitions = SharePartitions(shard, table, share_states, metadata)
        seats = Seats(shard, settings.group_share_max_share_sessions)
        OpenTransactions(shard, table, settings.transaction_max_timeout_ms).start()
        self.admission.verification.ask = transactions.verify
        coordinator.local.ask_coordinator = transactions.verify
        return Node(
            shard=shard,
            settings=settings,
            access=access,
            metadata=metadata,
            controller=self.client,
            partitions=table,
            storage=self.storage,
            admission=self.admission,
            meters=self.lifecycle.meters,
            home=home,
            events=EventsHome(shard, table, self.storage),
            admin_home=AdminHome(shard, table, lambda: self.storage.accepts_writes, self.archiver.replacing),
            loggers=Loggers(shard),
            ack_timeouts=AckTimeouts(shard.reactor, table, home),
            telemetry=Telemetry(shard, settings, metadata, self.storage, self.client, table, home),
            transfers=transfers,
            producer_ids=producer_ids,
            coordinator=coordinator,
            transactions=transactions,
            streams_topics=StreamsTopics(shard.reactor, self.client),
            share_states=share_states,
            share_partitions=share_partitions,
            share_sessions=ShareSessions(shard, share_partitions, seats, Moves(shard, seats)),
            coordinators=coordinators,
            end_offsets=end_offsets,
            acknowledgements=Acknowledgements(shard, coordinator),
            fetch_sessions=_fetch_sessions(shard, settings, home),
        )

    def open(self) -> None:
        """Open every partition of this shard, then tell the supervisor."""
        shared, shard = self.shared, self.shard
        self.partitions.open_all()
        self.control = control = shared.shards[shard.id].control.shard_end(shard.reactor)
        if shard.id == CONTROLLER_SHARD:
            self.metadata.subscribe(TellSupervisor(control, self.metadata))
            serve_first_user(control, self.metadata, self.client)
            if self.node.access is not None:
                serve_callers(control, self.clients.logins, self.node.access)
        control.on_gone = lambda: shard.reactor.stop(EXIT_CHILD, "the supervisor has exited")
        control.serve("begin", self._begin)
        control.serve("status", self._status)
        control.serve("segments", self._segments)
        control.serve("stop", self._stop)
        control.serve(NEW_CREDENTIALS, self._renew)
        control.serve(OPEN_BY_ADDRESS, self.clients.count_by_address)
        installs = self.peers.raft.installs if self.peers is not None else None
        failed = self._failed_partitions
        own = OwnParts(lambda: installs.progress if installs else [], self.archiver.shared, shard.stats, failed)
        serve_cluster_status(control, shard.reactor, self.metadata, self.controller, own)
        serve_recovery(control, shard.reactor, self.metadata, self.peers)
        unclean = None
        if self.peers is not None:
            leading = LeadingBrokers(self.metadata, self.peers.network.calls)
            known = self.metadata, self.client, leading
            unclean = UncleanCuts(shard.reactor, self.storage, self.table, self.partitions, *known, self.archiver.link)
        serve_repairs(control, shard.reactor, self.storage, self.table, self.partitions, unclean)
        serve_loggers(control)
        serve_changes(control, self.client if shard.id == CONTROLLER_SHARD else None)
        client = self.client if shard.id == CONTROLLER_SHARD else None
        serve_tiers(control, shard.reactor, self.table, client, self.archiver.link, self.metadata)
        serve_overview(control, shard.reactor, self.metadata, self.table, self.node.coordinator.local)
        if self.clients.logins.audit is not None:
            self.clients.logins.audit.start(partial(_send_audit, control))
        handover = shared.shards[shard.id].handover
        handover.keep_receiver()
        shard.reactor.add_reader(handover.fd, self._take_connections)
        hook = shared.settings.internal_shard_hook
        if hook:
            module, _, name = hook.partition(":")
            getattr(importlib.import_module(module), name)(self.node)
        if shard.id == CONTROLLER_SHARD:
            self.archiver.purges.resume()
        if self.peers is not None:
            self._watch_replicas()
            mode = BrokerModeListener(shard.reactor, self.metadata, self.peers.raft, self.peers.network, control)
            mode.start()
            if self.peers.controller is not None:
                self.peers.controller.has_left = mode.refused
            self.lifecycle.start_looks()
        if isinstance(self.controller, QuorumController):
            assert self.node.transfers is not None
            controller = self.controller
            if shared.life is not None:
                controller.plans.take_overs.end_lives = self.archiver.link.end_lives
            self.node.transfers.start_balancing(lambda: controller.is_deciding)
        if shard.id == CONTROLLER_SHARD:
            self._start_sweeps()
        self.lifecycle.start_expiry()
        self.lifecycle.show_producers()
        shard.reactor.settle()
        self._tell_when_ready(control)

    def _start_sweeps(self) -> None:
        """Remove shared objects without a user: in a cluster the broker does that leads the controller."""
        controller, metadata = self.controller, self.metadata

        def others() -> list[NodeId]:
            return [node for node in metadata.state.registry.alive() if node != metadata.node_id]

        def decides() -> bool:
            return not isinstance(controller, QuorumController) or controller.is_deciding

        self.sweeps.start(others, decides)

    def _watch_replicas(self) -> None:
        """Tell who leads the partitions with several replicas, and which of them are in sync."""
        metadata = self.metadata
        if self.peers is not None:
            Throttles(metadata, self.peers.raft.installs.throttle, self.shard.count)

        def alive() -> frozenset[int]:
            return frozenset(metadata.state.registry.alive())

        def lag_us() -> int:
            return metadata.settings.replica_lag_time_max_ms * 1000

        follower = self.follower
        in_sync = InSync(
            self.shard,
            self.table,
            NodeId(metadata.node_id),
            follower.report_leader,
            follower.report_heard,
            alive,
            lag_us,
            self.peers.raft.quiet if self.peers is not None else frozenset,
        )
        in_sync.start()
        FullDisk(self.shard.reactor, self.storage, self.table).start()
        self.partitions.on_moved = in_sync.replicas_changed
        GroupMembers(self.shard, self.table, metadata, self.client).start()
        calls = None if self.peers is None else self.peers.network.calls
        FailedReplicas(self.shard, lambda: self.table.failed, metadata, calls).start()

    def _tell_when_ready(self, control: ControlEnd) -> None:
        """Ready means that groups and transactional ids are loaded, too: clients that ask for their coordinator at once
        are not put off.
        """
        reported = False

        def ready() -> None:
            nonlocal reported
            if not reported:
                reported = True
                late.cancel()
                if self.peers is not None:
                    self.node.producer_ids.ask_ahead()
                control.ask("ready", self.shard.id, _nothing, READY_TIMEOUT_US)

        late = self.shard.reactor.call_later(LOADING_US, ready)
        self.node.coordinator.when_loaded(lambda: self.node.transactions.when_loaded(ready))

    def _take_connections(self) -> None:
        self.shared.shards[self.shard.id].handover.take(self._connected)

    def _connected(self, sock: Any, arrival: Arrival) -> None:
        if arrival.opening and self.peers is not None:
            self.peers.network.accept(sock, arrival.opening)
            return
        self.clients.open(sock, arrival)

    def _renew(self, message: Any, answer: Any) -> None:
        """New key material; handshakes from now on use it."""
        found = msgspec.msgpack.decode(message, type=dict[str, Credentials])
        self.clients.renew(found)
        if self.shared.tls.peers is not None:
            self.shared.tls.peers.renew(found[PEER_LISTENER])
        answer(None)

    def _begin_anew(self, why: str) -> None:
        """Have this broker stop in order, and start again by itself."""
        assert self.control is not None
        self.control.ask(BEGIN_ANEW, why, _nothing, READY_TIMEOUT_US)

    def _log_is_sealed(self, why: str) -> None:
        """A later start of this broker, or who takes it over. In a cluster it starts again, and learns what is left."""
        if self.peers is None:
            self.shard.reactor.stop(EXIT_UNAVAILABLE, why)
        else:
            self._begin_anew(f"{why}; it starts again")

    # What the supervisor asks

    def _begin(self, arguments: Any, answer: Callable[[Any], None]) -> None:
        """All shards are open; the controller's shard makes sure that there is a cluster."""
        _ = arguments
        assert self.controller is not None
        if self.peers is not None:
            self.peers.connect_all()

        def registered(error: MillstreamError | None) -> None:
            if error is None and self.log_in_store is not None:
                self.log_in_store.registered()
            answer(error or self.metadata.cluster_id)

        self.controller.start(registered)

    def _status(self, arguments: Any, answer: Callable[[Any], None]) -> None:
        _ = arguments
        answer(
            {
                "shard": self.shard.id,
                "cluster_id": self.metadata.cluster_id,
                "partitions": len(self.table.by_group),
                "connections": len(self.clients.intake.connections),
                "accepts_writes": self.storage.accepts_writes,
                "failed_partitions": self._failed_partitions(),
            }
        )

    def _failed_partitions(self) -> list[str]:
        return sorted(f"{one.name}:{one.index}" for one in self.table.failed.values())

    def _segments(self, topic: str, answer: Callable[[Any], None]) -> None:
        meta = self.metadata.topic(topic)
        if meta is None:
            raise Rejected(f"there is no topic {topic}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        about = {"topic": topic, "topic_id": meta.topic_id.hex(), "cluster_id": self.metadata.cluster_id}
        answer({"about": about, "partitions": describe_partitions(self.table, topic)})

    def _stop(self, arguments: Any, answer: Callable[[Any], None]) -> None:
        """Hand over what this broker leads, answer what is in flight, then make everything durable."""
        _ = arguments

        def drain() -> None:
            self.clients.end_logins()
            self.node.coordinator.stop()
            self.node.transactions.stop()
            self.node.share_states.stop()
            self.clients.drain(drained)

        def drained() -> None:
            if self.controller is not None:
                self.controller.stop(stop_storage)
            else:
                stop_storage()

        def stop_storage() -> None:
            self.archiver.stop()
            if self.peers is not None:
                self.peers.raft.stop()  # a leader on another broker would append for ever
            self.storage.stop(stopped)

        def stopped() -> None:
            if self.peers is not None:
                self.peers.stop()
            self._report_leaks()
            answer(EXIT_OK)

        if self.peers is not None:
            self.peers.leave(drain)
        else:
            drain()

    def _report_leaks(self) -> None:
        """With poisoning on (tests): every fragment but the log cache's must have come home."""
        leaks = [leak for leak in self.shard.arena.leaks() if _CACHE not in leak]
        if self.shared.settings.internal_arena_poison and leaks:
            log.error("%d fragments leaked, the last allocated by %s", len(leaks), leaks[-1])


def pin_to_own_core(shard_id: int) -> None:
    """Bind this shard to the core of its number, among those that the broker may use."""
    pin(core_of(ShardId(shard_id)))


def _nothing(answer: Any) -> None:
    """The supervisor knows now."""
    _ = answer


def _send_audit(control: ControlEnd, lines: list[bytes], done: Callable[[bool], None]) -> None:
    """Hand records of the audit to the supervisor, which says whether they are written."""
    control.ask(AUDIT, lines, lambda answer: done(answer is True), READY_TIMEOUT_US)


def _fetch_sessions(shard: Shard, settings: Settings, home: Home) -> FetchSessions:
    def forget(asked: SessionPartition) -> None:
        if isinstance(asked.watch, Watch):
            asked.watch.disarm(home.watches.unwatch)

    return FetchSessions(shard.id, shard.count, settings.fetch_session_slots, secrets.randbelow, on_forget=forget)
