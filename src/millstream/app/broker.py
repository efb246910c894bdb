"""The supervisor: start everything in the right order, hand out connections, and stop everything.

::

    lock the directory ► bind the ports (``claim``) ► recover the log (a child; the handlers are imported in parallel)
        ► map memory ► fork the shards ► they are ready ► write broker.json, print one line
        ► accept and hand over, answer HTTP, watch ► SIGTERM ► drain ► exit 0

No record passes through here; what runs here may be slow without anybody noticing. What it promises:

- One ready line on standard output and ``broker.json`` in the data directory, only when the broker serves.
- A second broker on the same directory or port is refused by name, before anything is changed; clients are refused
  until the broker serves (``app.listening``).
- A process of the broker that dies takes the broker down: the reason on stderr, a non-zero exit code, no process left.
- SIGTERM or SIGINT: no new connections, requests in flight are answered, segments are checkpointed, exit code 0. What
  does not finish in ``shutdown.timeout.ms`` is cut off; nothing that was acknowledged is lost by that.
- SIGKILL of the supervisor takes every child with it (parent-death signal).
"""

import contextlib
import json
import os
import secrets
import socket
import sys
import time
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import msgspec

from millstream import __version__
from millstream.admin.access import Access
from millstream.admin.backups import Backups
from millstream.admin.bodies import AuditQuery, LeadAlone, LoggerLevel, RepairAsked
from millstream.admin.bundle import Bundle
from millstream.admin.endpoints import make_router
from millstream.admin.http import HttpServer
from millstream.admin.overview import Facts, Overview
from millstream.admin.routing import Request, Response
from millstream.app import shard_main
from millstream.app.accepting import Acceptor
from millstream.app.acting import ActingCluster
from millstream.app.address_limits import ConnectionLimits, connection_limits
from millstream.app.audit_file import AUDIT, AuditFile, record_of_http, record_of_reading
from millstream.app.audit_reading import read_audit
from millstream.app.audit_topic import check_audit_topic
from millstream.app.broker_mode import HAS_LEFT
from millstream.app.claim import claim
from millstream.app.cluster_changes import change_cluster
from millstream.app.cluster_status import CLUSTER, joined
from millstream.app.first_user import create_first_user, read_first_user
from millstream.app.forming import join_cluster, says
from millstream.app.guard import Guard, listeners_need_guard
from millstream.app.http_callers import BrokerCallers
from millstream.app.limits import CONNECTION_LIMITS
from millstream.app.listening import bind, http_names, literal, plain, reached, serve
from millstream.app.log_levels import set_logger, show_loggers
from millstream.app.log_life import begin_log_life
from millstream.app.machine import machine
from millstream.app.memory import place_memory
from millstream.app.overview import gather, named_metrics
from millstream.app.own_clients import OwnClients
from millstream.app.own_way import NO_WAY, callers_way, own_way
from millstream.app.recovering import order_to_lead, show_replicas
from millstream.app.recovery import RecoveryChild, count
from millstream.app.repairs import repair_partition
from millstream.app.service import (
    BEGIN_ANEW,
    READY,
    STOPPING,
    begin_anew,
    catch_signals,
    print_ready_line,
    seconds_since_exec,
    tell_manager,
)
from millstream.app.shard_queries import ShardQueries
from millstream.app.shared import Bound, Shared
from millstream.app.side_frames import SideSettings
from millstream.app.slow_disk import DiskWatch
from millstream.app.socket_file import SOCKET_FILE, remove_socket_file, serve_socket_file
from millstream.app.stopped import StopWatch
from millstream.app.tiers import cache_status, prepare_topics, recover_topics, tier_status
from millstream.app.tls import TlsWatch, log_expiry, read_credentials
from millstream.cluster.identity import Identity, own_identity
from millstream.cluster.load import load_cluster
from millstream.cluster.metadata import live_settings
from millstream.config.carried import warning_about
from millstream.config.exposure import exposed
from millstream.config.listeners import HTTP_LISTENER, PEER_LISTENER, is_name, name_in
from millstream.config.node_properties import without_effect
from millstream.config.relations import remarks, takes_tokens
from millstream.config.settings import Settings
from millstream.core.controller.requests import AdminRequest
from millstream.errors import MillstreamError, Unavailable
from millstream.kafka import served
from millstream.kafka.access import controls_access
from millstream.kafka.audit import keeps_audit
from millstream.model.principal import ANONYMOUS
from millstream.model.principal import SOCKET_FILE as OWN_USER
from millstream.model.quantities import ShardId
from millstream.objects import check_store
from millstream.peers.accepting import PeerListener
from millstream.peers.hello import Refusal, RefusalReason
from millstream.peers.link import refuse
from millstream.peers.secured import OpeningKind, PeerTls
from millstream.shard import collector
from millstream.shard.control import ControlEnd
from millstream.shard.handover import Arrival
from millstream.shard.process import (
    EXIT_CHILD,
    EXIT_OK,
    EXIT_UNAVAILABLE,
    Child,
    may_become_realtime,
    rename,
    spawn,
)
from millstream.shard.reactor import Reactor
from millstream.shard.stall import StallWatch
from millstream.storage.chunks import ChunkDisk
from millstream.storage.disk import Disk, load_disk
from millstream.telemetry.log import Level, log
from millstream.telemetry.metrics import StatsSlab
from millstream.telemetry.node import node_samples
from millstream.telemetry.render import render
from millstream.tiers.process import store_url
from millstream.tune.at_start import start_line
from millstream.tune.machine_file import proposal_line

WATCH_US: Final = 100_000
"""How often the supervisor looks whether a disk is slow, or a process stopped."""

PATIENCE_US: Final = 2_000_000
"""How long an HTTP client waits for the shards: Prometheus' scrapes and a probe of a service end after some seconds."""

READY_TIMEOUT_US: Final = 120_000_000
BEGIN_TIMEOUT_US: Final = 10 * 365 * 86_400 * 1_000_000
"""A broker of a cluster waits for a majority of the others, however long they take."""

_NAMED_MAX: Final = 100
"""Failed partitions that ``/healthz`` names."""

REAP_TIMEOUT_S: Final = 2.0

_NO_REALTIME: Final = (
    "shards.realtime=true needs the right to real-time priority: start as root or with CAP_SYS_NICE, or raise the "
    "limit (ulimit -r 1; systemd: LimitRTPRIO=1)"
)
_LEVELS: Final = {"debug": Level.DEBUG, "info": Level.INFO, "warning": Level.WARN, "error": Level.ERROR}


def run(settings: Settings) -> int:
    """Run a broker until a signal stops it; returns the exit code."""
    log.who("supervisor")
    log.set_level(_LEVELS[settings.logging_level])
    log.set_form(settings.logging_format)
    try:
        supervisor = Supervisor(settings)
        code = supervisor.run()
    except MillstreamError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return EXIT_UNAVAILABLE
    except OSError as error:
        sys.stderr.write(f"error: cannot start on {settings.data_dir}: {error}\n")
        return EXIT_UNAVAILABLE
    if supervisor.again and code == EXIT_OK:
        begin_anew()
    return code


class Supervisor:
    """The parent process of a broker.

    Lifecycle: ``run`` once. Before the forks it has no loop and no thread.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.begun = time.monotonic()
        self.children: list[Child] = []
        self.ready = 0
        self.stopping = False
        self.again = False
        """This broker stops and starts again by itself."""
        self.serving = False
        """Clients are served. A broker of a cluster answers over HTTP before, while it waits for the others."""
        self.stats = StatsSlab()
        self.cluster_id = ""
        self.identity: Identity | None = None
        self.peer_listener: socket.socket | None = None
        self.guard: Guard | None = None

    @property
    def about_path(self) -> str:
        """The file that says where this broker listens."""
        return os.path.join(self.settings.data_dir, "broker.json")

    def run(self) -> int:
        settings = self.settings
        for ignored in without_effect(settings.given):
            log.info("%s is set: %s", ignored.name, ignored.doc)
        if settings.carried:
            log.warning("settings of Apache Kafka that have no meaning here: %s", warning_about(settings.carried))
        for remark in remarks(settings):
            log.warning("%s", remark)
        for address, what in exposed(settings):
            log.warning("%s %s; insecure.listeners=allow", address, what)
        self.stats.gauge("insecure_listeners").set(len(exposed(settings)))
        if settings.shard_realtime and not may_become_realtime():
            raise Unavailable(_NO_REALTIME)
        check_audit_topic(settings)
        check_store(store_url(settings))
        self.first_user = read_first_user()
        claimed = claim(settings)
        if os.path.exists(self.about_path):
            os.unlink(self.about_path)
        disk = ChunkDisk(load_disk(settings.internal_disk_factory))
        self.listeners, self.http_listener = claimed.listeners, claimed.http
        router = make_router(self, self.stats)
        self.clients = self._own_clients()
        self.clients.registry.mount(router, self.stats)
        credentials = read_credentials(settings)
        log_expiry(credentials)
        self.tls = TlsWatch(settings, credentials, self.stats)
        http_tls = credentials.get(HTTP_LISTENER)
        callers = BrokerCallers(self._ask_shard, self._need_guard) if controls_access(settings) else None
        if settings.console_enabled:
            self.clients.console.mount(router, self.stats, callers)
        self.http = HttpServer(
            self.http_listener,
            router,
            Access(http_names(settings)),
            None if http_tls is None else http_tls.server(),
            callers,
            name=name_in((settings.http_listen or settings.listen[0]).host),
        )
        self.identity = self._join_cluster(disk)
        recovery = RecoveryChild(settings, disk)
        served.warm_up()
        recovered = recovery.wait()
        count(recovered, self.stats)
        about = (self.identity, begin_log_life(settings, self.identity))
        self.shared = Shared(
            settings,
            disk,
            Bound(self._bound(), self.http.url),
            recovered,
            load_cluster(disk, settings),
            self.stats,
            *about,
            credentials,
        )
        place_memory(self.shared.arenas, settings)
        self._fork()
        try:
            self._supervise()
        finally:
            self.clients.close()
            if self.guard is not None:
                self.guard.close()
            for child in self.children:
                child.kill()
            for child in self.children:
                child.wait(REAP_TIMEOUT_S)
            os.close(claimed.lock)
        return self.reactor.exit_code

    # Starting

    def _join_cluster(self, disk: Disk) -> Identity | None:
        """Who this broker is in its cluster, which is formed or found if it has none yet; None for a single broker."""
        settings = self.settings
        identity = own_identity(disk, settings)
        if identity is None or settings.peer_listen is None:
            return None
        peer = settings.internal_peer_bind or settings.peer_listen
        self.peer_listener = bind(peer.host, peer.port, setting="--peer-listen")
        serve(self.peer_listener)
        if identity.next_incarnation:
            log.warning("a take-over of this data directory has started: if it is refused now, take it over again")
        if not identity.cluster_id:
            peer = self.tls.credentials.get(PEER_LISTENER)
            tls = None if peer is None else PeerTls(peer)
            identity = join_cluster(settings, disk, identity, self.peer_listener, tls)
        return identity

    def _ask_shard(self, name: str, arguments: Any, timeout_us: int) -> Any:
        """Ask shard 0, from a thread."""
        return self.queries.ask_one(name, arguments, timeout_us)

    def _need_guard(self) -> None:
        """Have the guard's process run, from a thread."""
        if self.guard is not None and not self.guard.runs:
            self.queries.on_reactor(self.guard.start)

    def _own_clients(self) -> OwnClients:
        """The registry, the console and questions about tables."""
        settings = self.settings
        way = own_way(settings, {name: reached(listener) for name, listener in self.listeners.items()})
        callers = callers_way(settings, way)
        shown = next(iter(self._advertised().values()))
        side = SideSettings(
            way.bootstrap,
            callers.bootstrap,
            shown,
            settings.console_read_only,
            secrets.token_bytes(32),
            way.security,
            callers.security,
            takes_tokens(settings),
            settings.console_oidc_issuer_url,
            settings.console_oidc_redirect_uri,
            settings.console_mask,
        )
        problem = ""
        if settings.peer_listen is not None and not callers.bootstrap:
            problem = f"The brokers of this cluster do not serve it: {NO_WAY}. Until then it runs beside them: "
            problem += f"millstream console --bootstrap {shown} --login SCRAM-SHA-512"
        return OwnClients(settings, way, side, self._connect_as, problem)

    def _connect_as(self, principal: str, host: str, encrypted: bool) -> socket.socket:
        """A connection to this broker that acts as a principal from a host; for the HTTP threads."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        try:
            self.queries.on_reactor(lambda: self.acceptor.connect(theirs, principal, host, encrypted=encrypted))
        except BaseException:
            ours.close()
            raise
        return ours

    def _fork(self) -> None:
        """Fork the shards, from a process that has everything imported and nothing running."""
        shared = self.shared
        descriptors = [*(listener.fileno() for listener in self.listeners.values()), self.http.fd]
        if self.peer_listener is not None:
            descriptors.append(self.peer_listener.fileno())
        collector.freeze_for_fork()
        for shard in range(self.settings.shards):

            def main(shard: int = shard) -> int:
                for fd in descriptors:
                    os.close(fd)
                return shard_main.main(shared, shard)

            self.children.append(spawn(f"shard {shard}", main))

    def _supervise(self) -> None:
        """Watch over the shards from here on, until the broker stops."""
        shared = self.shared
        self.reactor = Reactor(ShardId(-1), self.stats)
        self.controls: list[ControlEnd] = []
        audit: AuditFile | None = None
        if keeps_audit(self.settings):
            settings = self.settings
            audit = AuditFile(self.reactor, settings.data_dir, settings.audit_log_bytes, settings.audit_log_files)
            self.http.audit_by(partial(record_of_http, audit))
            self.clients.console.audit = partial(record_of_reading, audit)
            self.clients.copy_audit(self.stats, settings)
        elif self.settings.audit_topic:
            log.warning("audit.topic=%s has no effect: this broker keeps no audit", self.settings.audit_topic)
        state = shared.cluster.state
        limits = connection_limits(live_settings(state, self.settings), state.security.limits)
        self.acceptor = Acceptor(self.reactor, shared.shards, self.stats, limits, self.controls)
        log.who("supervisor", self.stats)
        rename("supervisor")
        catch_signals(self.reactor, self.stop, self.tls.try_reload)
        self.watch = StallWatch(self.settings.stall_limit_ms)
        self.disk_watch = DiskWatch(self.stats)
        self.stop_watch = StopWatch()
        for shard, child in enumerate(self.children):
            control = shared.shards[shard].control.supervisor_end(self.reactor)
            control.serve("ready", self._shard_ready)
            control.serve(CONNECTION_LIMITS, self._limit_connections)
            control.serve(HAS_LEFT, self._has_left)
            if audit is not None:
                control.serve(AUDIT, audit.take)
            control.serve(BEGIN_ANEW, self._begin_anew)
            self.controls.append(control)
            shared.shards[shard].handover.keep_sender()
            self.reactor.add_reader(child.pidfd, lambda child=child: self._child_ended(child))
        self.tls.start(self.reactor, self.controls, self.http.renew, shared.tls.peers)
        if shared.guard is not None:
            self.guard = Guard(self.reactor, shared.guard)
            if listeners_need_guard(self.settings):
                self.guard.start()
        self._listen_to_peers()
        self.queries = ShardQueries(self.reactor, self.controls)
        self.ready_timer = self.reactor.call_later(READY_TIMEOUT_US, self._not_ready)
        self.reactor.run()
        if audit is not None:
            audit.close()

    def _listen_to_peers(self) -> None:
        """Hand connections of other brokers to the shard that each wants, also before this broker serves clients."""
        listener, identity = self.peer_listener, self.identity
        if listener is None or identity is None:
            return
        probe = says(self.settings, identity)
        self.peers = PeerListener(
            self.reactor, lambda: probe, self._hand_over_peer, self.shared.tls.peers, self._hand_over_own_client
        )
        self.peers.open(listener)

    def _hand_over_peer(self, sock: socket.socket, target: int, start: bytes) -> bool:
        if target >= len(self.children):
            if self.shared.tls.peers is not None:
                return False
            refuse(sock, Refusal(RefusalReason.NO_SUCH_SHARD, f"this broker has {len(self.children)} shards"))
            return True
        peer, local = sock.getpeername(), sock.getsockname()
        arrival = Arrival(plain(str(peer[0])), int(peer[1]), plain(str(local[0])), int(local[1]), "", start)
        if not self.shared.shards[target].handover.send(sock.fileno(), arrival):
            return False
        sock.detach()
        return True

    def _hand_over_own_client(self, sock: socket.socket, kind: OpeningKind) -> bool:
        """A client of another broker's own, or of this one's: its rights were checked there, or it has yet to say for
        whom it acts.
        """
        if not self.serving:
            return False
        peer, local = sock.getpeername(), sock.getsockname()
        where = plain(str(peer[0])), int(peer[1]), plain(str(local[0])), int(local[1])
        principal = OWN_USER if kind is OpeningKind.CLIENT else ANONYMOUS
        return self.acceptor.hand_over(sock, Arrival(*where, PEER_LISTENER, principal=principal))

    def _limit_connections(self, limit: Any, answer: Any) -> None:
        """Settings or quotas of connections were changed."""
        self.acceptor.addresses.limits = msgspec.convert(limit, ConnectionLimits)
        answer(None)

    def _has_left(self, arguments: Any, answer: Any) -> None:
        """The cluster has let this broker go: nothing is left for it to do."""
        _ = arguments
        answer(None)
        if not self.stopping:
            log.info("this broker has left the cluster, and stops; its data directory is of no more use")
            self.stop()

    def _begin_anew(self, arguments: Any, answer: Any) -> None:
        """What is on the disk has changed under this broker: it stops in order and starts again by itself."""
        answer(None)
        if not self.stopping:
            log.info("%s", arguments)
            self.again = True
            self.stop()

    def _shard_ready(self, arguments: Any, answer: Any) -> None:
        """A shard has opened its partitions; with the last of them the broker serves."""
        _ = arguments
        answer(None)
        self.ready += 1
        if self.ready == len(self.children) and not self.stopping:
            self.ready_timer.cancel()
            timeout_us = READY_TIMEOUT_US if self.identity is None else BEGIN_TIMEOUT_US
            if self.identity is not None and not self._serve_http():
                return
            self.controls[0].ask("begin", None, self._begun, timeout_us)

    def _begun(self, answer: Any) -> None:
        """The cluster exists on every shard; its id is the answer."""
        if isinstance(answer, MillstreamError):
            self.reactor.stop(EXIT_UNAVAILABLE, f"the controller did not start: {answer.message}")
        elif not self.stopping:
            self.cluster_id = str(answer)
            self._serve()

    def _not_ready(self) -> None:
        self.reactor.stop(EXIT_UNAVAILABLE, "the shards did not come up in time")

    def _serve(self) -> None:
        for shard in self.shared.shards:
            self.watch.add(shard.stats["shard"])
            self.disk_watch.add(shard.stats["writer"].shard, shard.stats["writer"])
            for slab in shard.stats.values():
                self.stop_watch.add(slab)
        try:
            for listener in self.listeners.values():
                serve(listener)
        except MillstreamError as error:
            self.reactor.stop(EXIT_UNAVAILABLE, error.message)
            return
        self.acceptor.open({**self.listeners, **self._socket_file()})
        if self.identity is None and not self._serve_http():
            return
        self.serving = True
        self._watch_stalls()
        self._watch_disks()
        listeners = self._advertised()
        about = {
            "bootstrap": next(iter(listeners.values())),
            "listeners": listeners,
            "http": self.http.url,
            "metrics": f"{self.http.url}/metrics",
            "pid": os.getpid(),
            "node_id": self.settings.node_id,
            "cluster_id": self.cluster_id,
            "version": __version__,
        }
        temporary = f"{self.about_path}.new"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(about, file)
        os.rename(temporary, self.about_path)
        tell_manager(READY)
        create_first_user(self.controls[0], self.first_user)
        self.clients.start()
        self._tell_failed()
        count, addresses = len(self.children), ", ".join(listeners.values())
        print_ready_line(
            f"millstream {__version__} serves after {seconds_since_exec():.1f} s: bootstrap {addresses}; "
            f"http {self.http.url}; {count} shard{'s' if count > 1 else ''}; data in {self.settings.data_dir}"
        )
        with contextlib.suppress(OSError):  # advice about the machine ends no broker
            for line in filter(None, (start_line(self.settings), proposal_line(self.settings))):
                log.info("%s", line)

    def _socket_file(self) -> dict[str, socket.socket]:
        """The listener of the socket file; none where the file system cannot have one."""
        try:
            return {SOCKET_FILE: serve_socket_file(self.settings.data_dir)}
        except OSError as error:
            log.warning("there is no %s in %s: %s", SOCKET_FILE, self.settings.data_dir, error)
            return {}

    def _tell_failed(self) -> None:
        """Say how many partitions are not served, if any; the lines above have the reasons."""
        failed = sum(one.stats["shard"].gauge("partitions", state="failed").value for one in self.shared.shards)
        if failed:
            log.warning(
                "%d partitions are not served (see above, and failed_partitions in /healthz); "
                "'millstream topic repair NAME:PARTITION' says what brings one back",
                failed,
            )

    def _serve_http(self) -> bool:
        """Answer over HTTP from now on; False if the port is another's."""
        try:
            serve(self.http_listener, "--http")
        except MillstreamError as error:
            self.reactor.stop(EXIT_UNAVAILABLE, error.message)
            return False
        self.http.start()
        return True

    def _advertised(self) -> dict[str, str]:
        """The address that clients of each listener get, where it is known before they connect."""
        advertised = {each.name: (each.host, each.port) for each in self.settings.advertised_listeners}
        addresses = {name: advertised.get(name, at) for name, at in self._bound().items()}
        return {name: f"{literal(host)}:{port}" for name, (host, port) in addresses.items()}

    def _bound(self) -> dict[str, tuple[str, int]]:
        """Host and port of each listener. The host is the name in the settings, if it is a name."""
        named = {each.name: each.host for each in self.settings.listen if is_name(each.host)}
        found: dict[str, tuple[str, int]] = {}
        for name, listener in self.listeners.items():
            address: tuple[str, int] = listener.getsockname()[:2]
            found[name] = named.get(name, address[0]), address[1]
        return found

    def _watch_stalls(self) -> None:
        self.watch.poll()
        self.reactor.call_at(self.watch.next_us, self._watch_stalls)

    def _watch_disks(self) -> None:
        self.disk_watch.poll()
        self.stop_watch.poll()
        self.reactor.call_later(WATCH_US, self._watch_disks)

    # Serving

    def metrics(self) -> bytes:
        """The page of ``/metrics``; without topics and groups where a shard does not say in time what it has."""
        node = node_samples(self.settings.data_dir, __version__)
        limits = self.settings.metrics_topics_max, self.settings.metrics_groups_max
        try:
            named = named_metrics(gather(self.queries, *limits, PATIENCE_US), limits[1]) if any(limits) else {}
        except MillstreamError:
            named = {}
        return render(self.shared.slabs, self.shared.arenas, node, named)

    def health(self) -> dict[str, Any]:
        if self.stopping:
            raise Unavailable("the broker is stopping")
        if not self.serving:
            raise Unavailable("the broker waits for a majority of its cluster")
        answers = self.queries.ask_all("status", None, PATIENCE_US)
        failed = [name for answer in answers for name in answer["failed_partitions"]]
        return {
            "accepts_writes": all(answer["accepts_writes"] for answer in answers),
            "failed_partitions": sorted(failed)[:_NAMED_MAX],
        }

    def facts(self) -> Facts:
        uptime_s = time.monotonic() - self.begun
        bootstrap = next(iter(self._advertised().values()))
        try:
            accepts_writes = bool(self.health()["accepts_writes"])
        except MillstreamError:
            accepts_writes = True  # the page fails for the same reason
        console = self.settings.console_enabled and self.clients.console.works
        return Facts(__version__, self.settings.node_id, self.cluster_id, bootstrap, uptime_s, accepts_writes, console)

    def overview(self, topics_max: int, groups_max: int) -> Overview:
        return gather(self.queries, topics_max, groups_max, PATIENCE_US)

    def pipelines(self) -> list[dict[str, Any]]:
        return self.clients.tables.all()

    def status(self) -> dict[str, Any]:
        answers = self.queries.ask_all("status", None)
        return {
            "version": __version__,
            "node_id": self.settings.node_id,
            "cluster_id": self.cluster_id,
            "shards": answers,
        }

    def cluster(self) -> dict[str, Any]:
        return joined(self.queries.ask_all(CLUSTER, None))

    def change_cluster(self, request: AdminRequest) -> dict[str, Any]:
        return change_cluster(self.queries, request)

    def replicas(self) -> dict[str, Any]:
        return show_replicas(self.queries, self.cluster())

    def lead_alone(self, order: LeadAlone) -> dict[str, Any]:
        return order_to_lead(self.queries, order)

    def repair_partition(self, asked: RepairAsked) -> dict[str, Any]:
        return repair_partition(self.queries, asked)

    def loggers(self) -> dict[str, Any]:
        return show_loggers()

    def acting(self, request: Request) -> AbstractContextManager[ActingCluster]:
        return self.clients.acting.of(request)

    def set_logger(self, asked: LoggerLevel) -> dict[str, Any]:
        return set_logger(self.queries, asked)

    def certificates(self) -> dict[str, Any]:
        return self.tls.describe()

    def reload_certificates(self) -> dict[str, Any]:
        return {"changed": self.queries.on_reactor(self.tls.reload)}

    def tiers(self, topic: str | None) -> dict[str, Any]:
        stats = [one.stats[role] for one in self.shared.shards for role in ("archive", "upload")]
        return tier_status(self.queries, store_url(self.settings), topic, stats)

    def caches(self) -> dict[str, Any]:
        return cache_status(self.queries, self.settings, [one.stats["shard"] for one in self.shared.shards])

    def machine(self) -> dict[str, Any]:
        return machine(self.settings)

    def backups(self) -> Backups:
        return self.clients.backups.read()

    def begin_bundle(self, request: Request, minutes: float) -> Bundle:
        try:
            with self.acting(request) as acting:
                settings = msgspec.to_builtins(acting.settings(None, every=True))
        except MillstreamError as error:
            settings = {"missing": error.message}
        documents = {
            "settings": lambda: settings,
            "state/health": self.health,
            "state/status": self.status,
            "state/cluster": self.cluster,
            "state/recovery": self.replicas,
            "state/tiers": lambda: self.tiers(None),
            "state/cache": self.caches,
            "state/certificates": self.certificates,
            "tune": self.machine,
        }
        bootstrap = next(iter(self._advertised().values()))
        return self.clients.bundles.begin(minutes, documents, self.metrics, bootstrap)

    def bundle(self) -> Bundle:
        return self.clients.bundles.state()

    def bundle_file(self, name: str) -> Response:
        return self.clients.bundles.download(name)

    def audit(self, query: AuditQuery) -> dict[str, Any]:
        settings = self.settings
        found = read_audit(settings.data_dir, settings.audit_log_files, query.limit, query.before, query.word)
        return {"kept": keeps_audit(settings), **found}

    def prepare_topics(self, names: list[str]) -> dict[str, Any]:
        disk, data_dir = self.shared.disk, self.settings.data_dir
        return {"topics": prepare_topics(self.queries, disk, data_dir, store_url(self.settings), names)}

    def recover_topics(self, names: list[str]) -> dict[str, Any]:
        return {"topics": recover_topics(self.queries, store_url(self.settings), names)}

    def segments(self, topic: str) -> dict[str, Any]:
        answers = self.queries.ask_all("segments", topic)
        about = dict(answers[0]["about"])
        partitions = [entry for answer in answers for entry in answer["partitions"]]
        about["node_id"] = self.settings.node_id
        about["data_dir"] = os.path.abspath(self.settings.data_dir)
        if self.identity is not None:
            about["incarnation"] = self.identity.incarnation
        if any("archived_end_offset" in entry for entry in partitions):
            about["objects_url"] = store_url(self.settings)
        about["partitions"] = sorted(partitions, key=lambda entry: entry["partition"])
        return about

    # Stopping

    def stop(self) -> None:
        """Drain and end; asked twice it ends at once."""
        if self.stopping:
            self.reactor.stop(EXIT_OK, "a second signal to stop")
            return
        self.stopping = True
        tell_manager(STOPPING)
        if os.path.exists(self.about_path):
            os.unlink(self.about_path)
        if self.ready < len(self.children):
            self.reactor.stop(EXIT_OK, "stopped before it was ready")
            return
        self.acceptor.close()
        remove_socket_file(self.settings.data_dir)
        self.reactor.call_later(self.settings.shutdown_timeout_ms * 1000, self._stop_late)
        waiting = len(self.controls)

        def stopped(answer: Any) -> None:
            nonlocal waiting
            if isinstance(answer, MillstreamError):
                log.error("a shard did not stop cleanly: %s", answer.message)
            waiting -= 1
            if not waiting:
                self.reactor.stop(EXIT_OK, "everything is in the segments")

        for control in self.controls:
            control.ask("stop", None, stopped, self.settings.shutdown_timeout_ms * 1000)

    def _stop_late(self) -> None:
        self.reactor.stop(EXIT_OK, "the last checkpoint took too long; the next start replays the write-ahead log")

    def _child_ended(self, child: Child) -> None:
        """A shard has ended: the broker stops, too, unless it is stopping already."""
        self.reactor.remove_reader(child.pidfd)
        status = child.poll()
        if not self.stopping:
            code = status.code if status is not None and status.code and not status.signal else EXIT_CHILD
            self.reactor.stop(code, f"{child.name} {status}")
