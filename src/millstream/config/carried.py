"""Settings of Apache Kafka that have no meaning here, so that a ``server.properties`` can be used as it is.

A start takes each of them with any value, leaves it out, and says so in one warning that lists them all with the
reason. It refuses a value that would promise something that Millstream does not do, such as a policy in Java, and one
that shows that this broker belongs to a cluster while ``seeds`` is missing: it would otherwise start alone, and each
broker of the old cluster would become a cluster of its own. A name that is neither here nor a setting is an error.

The names are those of Kafka 4.3.1, and those of older releases that are still found in files. A setting that tools read
back or change (DescribeConfigs) is declared instead, with Kafka's type and default
(``properties.without_effect``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.config.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from millstream.config.settings import Settings

_CONTROLLERS: Final = "every broker is a controller, and `seeds` names them"
_PEERS: Final = "brokers talk to each other on `peer.listen`, secured by `peer.security.protocol`"
_REMOTE: Final = "`objects.url` names the object store, and `storage.mode` says which topics use it"
_JAAS: Final = (
    "users are kept in the cluster: `millstream user create`, or MILLSTREAM_BOOTSTRAP_USER_FILE for the first"
)
_REPLICATION: Final = "leaders send to their followers as records arrive"
_METRICS: Final = "metrics are served as /metrics on the HTTP port"
_PARTS: Final = "the part of Kafka that it tunes is not here"
_JAVA: Final = "there are no Java classes to load"

_FAMILIES: Final[tuple[tuple[str, str], ...]] = (
    (
        _CONTROLLERS,
        """process.roles controller.listener.names controller.quorum.voters controller.quorum.bootstrap.servers
        controller.quorum.append.linger.ms controller.quorum.auto.join.enable controller.quorum.election.backoff.max.ms
        controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
        controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
        controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.socket.timeout.ms
        controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
        broker.heartbeat.interval.ms broker.session.timeout.ms initial.broker.registration.timeout.ms
        metadata.log.dir metadata.log.max.record.bytes.between.snapshots
        metadata.log.segment.bytes metadata.log.segment.min.bytes metadata.log.segment.ms
        metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
        internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
        internal.metadata.max.batch.size.in.bytes internal.metadata.max.fetch.size.in.bytes
        sasl.mechanism.controller.protocol early.start.listeners server.max.startup.time.ms
        zookeeper.connect zookeeper.connection.timeout.ms zookeeper.session.timeout.ms zookeeper.set.acl
        zookeeper.max.in.flight.requests zookeeper.metadata.migration.enable broker.id.generation.enable
        reserved.broker.max.id inter.broker.protocol.version control.plane.listener.name
        unstable.api.versions.enable unstable.feature.versions.enable unstable.metadata.versions.enable""",
    ),
    (
        _PEERS,
        """inter.broker.listener.name sasl.mechanism.inter.broker.protocol socket.connection.setup.timeout.ms
        socket.connection.setup.timeout.max.ms request.timeout.ms""",
    ),
    (
        _REPLICATION,
        """replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.response.max.bytes
        replica.fetch.wait.max.ms replica.socket.receive.buffer.bytes replica.socket.timeout.ms
        replica.high.watermark.checkpoint.interval.ms replication.quota.window.num
        replication.quota.window.size.seconds unclean.leader.election.interval.ms""",
    ),
    (
        "there is one data directory, `data.dir`",
        """cordoned.log.dirs log.dir.failure.timeout.ms num.replica.alter.log.dirs.threads
        alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds""",
    ),
    (
        _REMOTE,
        """remote.log.storage.system.enable remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
        remote.log.index.file.cache.total.size.bytes remote.log.index.file.cache.ttl.ms
        remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
        remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
        remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
        remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
        remote.log.manager.follower.thread.pool.size remote.log.manager.task.interval.ms
        remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
        remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
        remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
        remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
        remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks remote.log.reader.threads
        remote.log.storage.manager.class.name remote.log.storage.manager.class.path
        remote.log.storage.manager.impl.prefix follower.fetch.last.tiered.offset.enable""",
    ),
    (
        _JAAS,
        """sasl.jaas.config sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class
        sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
        sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
        sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms""",
    ),
    (
        "GSSAPI (Kerberos) is not served",
        """sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules
        sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor""",
    ),
    (
        "brokers get no tokens for themselves: certificates are their login",
        """sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
        sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
        sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
        sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
        sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
        sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
        sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.scope
        sasl.oauthbearer.token.endpoint.url""",
    ),
    (
        "delegation tokens are refused",
        """delegation.token.secret.key delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
        delegation.token.max.lifetime.ms delegation.token.master.key""",
    ),
    ("new keys may have any names", "ssl.allow.dn.changes ssl.allow.san.changes"),
    (
        _JAVA,
        """alter.config.policy.class.name create.topic.policy.class.name principal.builder.class
        client.quota.callback.class ssl.engine.factory.class security.providers config.providers""",
    ),
    (
        _METRICS,
        """metric.reporters kafka.metrics.reporters kafka.metrics.polling.interval.secs metrics.num.samples
        metrics.recording.level metrics.sample.window.ms auto.include.jmx.reporter""",
    ),
    (
        "coordinators write when a turn of their shard ends, and load as fast as their log is read",
        """group.coordinator.append.linger.ms group.coordinator.new.enable offsets.commit.timeout.ms
        offsets.commit.required.acks offsets.load.buffer.size transaction.state.log.load.buffer.size
        share.coordinator.append.linger.ms share.coordinator.cached.buffer.max.bytes
        share.coordinator.cold.partition.snapshot.interval.ms share.coordinator.load.buffer.size
        share.coordinator.snapshot.update.records.per.snapshot share.coordinator.state.topic.prune.interval.ms
        share.coordinator.threads share.coordinator.write.timeout.ms group.share.persister.class.name
        group.share.initialize.retry.interval.ms add.partitions.to.txn.retry.backoff.max.ms
        add.partitions.to.txn.retry.backoff.ms""",
    ),
    (
        _PARTS,
        """share.coordinator.state.topic.compression.codec share.coordinator.state.topic.segment.bytes
        offsets.topic.compression.codec socket.listen.backlog.size delete.records.purgatory.purge.interval.requests
        share.fetch.purgatory.purge.interval.requests log.flush.offset.checkpoint.interval.ms
        log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms""",
    ),
    (
        "always so here",
        """controlled.shutdown.enable controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms
        transaction.partition.verification.enable""",
    ),
    ("two-phase commit (KIP-939) is not served", "transaction.two.phase.commit.enable"),
    (
        "Kafka has removed it, too",
        """log.message.format.version log.message.downconversion.enable
        log.message.timestamp.difference.max.ms""",
    ),
)

_REASONS: Final[Mapping[str, str]] = {name: reason for reason, names in _FAMILIES for name in names.split()}

_PREFIXES: Final[tuple[tuple[str, str], ...]] = (("rsm.config.", _REMOTE), ("rlmm.config.", _REMOTE))

_PROMISES: Final[Mapping[str, str]] = {
    "alter.config.policy.class.name": "policies in Java are not run here, and nothing else would enforce this one",
    "create.topic.policy.class.name": "policies in Java are not run here, and nothing else would enforce this one",
    "principal.builder.class": "names of users are made by ssl.principal.mapping.rules, not by a Java class",
    "client.quota.callback.class": "quotas are those of 'millstream quota', not of a Java class",
    "ssl.engine.factory.class": "TLS is set by ssl.keystore.location and its like, not by a Java class",
    "security.providers": "TLS is set by ssl.keystore.location and its like, not by Java classes",
    "config.providers": "values such as ${file:…} are not resolved here; write the values themselves",
    "transaction.two.phase.commit.enable": "two-phase commit (KIP-939) is not served",
}
"""What a value that is neither empty, false nor Kafka's own class would promise."""


def reason_of(name: str) -> str | None:
    """Why a setting of Kafka has no meaning here; None for any other name."""
    name = _of_all_listeners(name)
    return _REASONS.get(name) or next((reason for prefix, reason in _PREFIXES if name.startswith(prefix)), None)


def _of_all_listeners(name: str) -> str:
    """The setting that ``listener.name.NAME.…`` sets for one listener, if it has no meaning here; or ``name``."""
    if not name.startswith("listener.name."):
        return name
    return next((each for each in ("sasl.jaas.config", "ssl.engine.factory.class") if name.endswith(each)), name)


def families() -> list[tuple[str, list[str]]]:
    """Every such name, by reason."""
    return [(reason, sorted(names.split())) for reason, names in _FAMILIES]


def check_carried(given: Mapping[str, str], settings: Settings) -> None:
    """Raise ConfigError for a value of Kafka that promises what is not done here.

    Args:
        given: the texts of settings without a meaning, by name.
        settings: what the node will run with.
    """
    for name, text in given.items():
        promise = _PROMISES.get(_of_all_listeners(name))
        if promise and text and text.lower() != "false" and not text.startswith("org.apache.kafka.common.security."):
            raise ConfigError(name, f"{promise}; remove the line if that is meant")
    if given.get("remote.log.storage.system.enable", "").lower() == "true" and not settings.objects_url:
        raise ConfigError(
            "remote.log.storage.system.enable", "tiered topics need objects.url, such as s3://BUCKET/PATH"
        )
    if settings.seeds:
        return
    for name in ("controller.quorum.voters", "controller.quorum.bootstrap.servers", "zookeeper.connect"):
        nodes = _words(given.get(name, ""))
        if len(nodes) > 1 or (nodes and name == "zookeeper.connect"):
            raise ConfigError(
                name,
                "this broker belonged to a cluster, and would start alone here: give seeds=HOST:PORT,… with the peer "
                "addresses of all brokers, or remove the line for a single broker",
            )


def check_node(given: Mapping[str, str]) -> None:
    """Raise ConfigError for a file of a controller without a broker, or of a broker with several data directories."""
    if _words(given.get("process.roles", "")) == ["controller"]:
        raise ConfigError("process.roles", "a controller without a broker is not needed: every broker is a controller")
    for name in ("log.dirs", "log.dir"):
        if len(_words(given.get(name, ""))) > 1:
            raise ConfigError(name, "names several directories, and a broker has one, data.dir")


def without_controllers(name: str, text: str, controllers: Iterable[str]) -> str:
    """The value of ``listeners``, ``advertised.listeners`` or ``listener.security.protocol.map`` without the listeners
    of Kafka's controllers.
    """
    parted = "://" if name.endswith("listeners") else ":"
    removed = {each.upper() for each in controllers}
    return ",".join(each for each in text.split(",") if each.strip().partition(parted)[0].upper() not in removed)


def warning_about(given: Iterable[str]) -> str:
    """The warning about settings that were left out, by reason."""
    by_reason: dict[str, list[str]] = {}
    for name in given:
        by_reason.setdefault(reason_of(name) or "", []).append(name)
    return "; ".join(f"{', '.join(sorted(found))} ({reason})" for reason, found in by_reason.items())


def _words(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
