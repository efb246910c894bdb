"""What travels over HTTP as JSON: bodies of requests and of answers, as far as their fields are fixed.

A request that lacks a field, or has one of another type, is refused as a whole with the path of the field. Requests to
the controller (``POST /v1/cluster``) are those of `core.controller.requests`.
"""

from typing import Annotated, Any, Literal

import msgspec

from millstream.admin.overview import GroupView, TopicView


class TopicQuery(msgspec.Struct, frozen=True):
    """Parameters of routes that may show one topic alone."""

    topic: str | None = None
    """Name of the topic; without it all are shown."""


class ListQuery(msgspec.Struct, frozen=True):
    """Parameters of lists, which are in order of the names."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    """Entries at most; ``total`` says how many there are."""


class AuditQuery(msgspec.Struct, frozen=True):
    """Parameters of the audit."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    """Records at most; more only if several are of the same time as the last."""
    before: str = ""
    """Only records that are older than this time, as ``next_before`` has it."""
    word: str = ""
    """Only records in which this stands; letter case does not count."""


class AuditRecords(msgspec.Struct, frozen=True):
    """Records of the audit, the newest first. ``kept`` is whether this broker writes any."""

    kept: bool
    records: list[dict[str, Any]]
    next_before: str
    """From where older records continue; empty at the end."""


class Machine(msgspec.Struct, frozen=True):
    """Facts by their titles, and the findings that ``millstream tune --json`` has."""

    facts: dict[str, str]
    findings: list[dict[str, Any]]


class TopicList(msgspec.Struct, frozen=True):
    """The first topics by name, internal ones among them. Counters are since the start of this broker."""

    topics: list[TopicView]
    total: int


class GroupList(msgspec.Struct, frozen=True):
    """The first consumer groups by name, of those that this broker coordinates."""

    groups: list[GroupView]
    total: int


class BrokerList(msgspec.Struct, frozen=True):
    """The registered brokers of a cluster, as this broker sees them. A broker that runs alone has none."""

    brokers: list[dict[str, Any]]


class TopicNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Topics of the object store. A name that is ``id:`` and a topic id chooses one of several of a name."""

    topics: list[str] = []
    """Empty for all."""


class LeadAlone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The order: these groups continue with this broker, without the brokers ``lost``."""

    groups: tuple[int, ...]
    lost: tuple[int, ...]
    reason: str = ""


class RepairAsked(msgspec.Struct, frozen=True):
    """The partition to repair. Without ``execute`` the answer is a plan, and nothing changes."""

    topic: str
    partition: int
    execute: bool = False
    unclean_from: int | None = None
    """Set for an unclean cut: the node id of this broker, whose replica is to be the partition's log."""
    reason: str = ""
    """Of an unclean cut: goes into the controller's log."""


class LoggerLevel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A level for a logger: a room, or ``root`` for all. It ends automatically. A null level ends it now."""

    logger: str
    level: Literal["DEBUG", "INFO", "WARN", "ERROR"] | None
    minutes: Annotated[float, msgspec.Meta(gt=0, le=1440)] = 10.0


class Logger(msgspec.Struct, frozen=True):
    """A logger of the broker's processes. ``ends_in_s`` is null where the level does not end."""

    logger: str
    level: str
    ends_in_s: float | None


class Loggers(msgspec.Struct, frozen=True):
    """All loggers, ``root`` first."""

    loggers: list[Logger]


class Repaired(msgspec.Struct, frozen=True):
    """A plan, or what was done."""

    topic: str
    partition: int
    reason: str
    """Why it is not served."""
    step: str
    """``open``, ``install``, ``cut``, ``derive`` or ``unclean``."""
    end_offset: int
    """Where the log ends afterwards; -1 if that is not known."""
    lost: int
    """Records that are lost by it; 0 if none."""
    done: bool
    missing: int = 0
    """Of an unclean cut: archived records of which the object store has no object; reading them is an error."""


class Health(msgspec.Struct, frozen=True):
    """A broker that is well. ``accepts_writes`` is false while its disk is full."""

    status: str
    accepts_writes: bool
    failed_partitions: list[str]


class Unwell(msgspec.Struct, frozen=True):
    """A broker that is not well, and why."""

    status: str
    error: str
    message: str


class Status(msgspec.Struct, frozen=True):
    """A broker, and the figures of each of its shards."""

    version: str
    node_id: int
    cluster_id: str
    shards: list[dict[str, Any]]


class ChangeResult(msgspec.Struct, frozen=True):
    """What became of one part of a request. ``error`` is Kafka's name, null without one."""

    error: str | None
    message: str | None
    topic: str | None
    moves: int
    """Moves of replicas that have started."""


class Changed(msgspec.Struct, frozen=True):
    """A result for each part of the request."""

    results: list[ChangeResult]


class LedAlone(msgspec.Struct, frozen=True):
    """The groups that this broker leads alone now."""

    groups: list[int]


class ListenerCertificate(msgspec.Struct, frozen=True):
    """The certificate of one listener. ``ends_s`` is in seconds since 1970."""

    listener: str
    subject: str
    ends: str
    ends_s: int


class Certificates(msgspec.Struct, frozen=True):
    """The certificates of all listeners with TLS."""

    certificates: list[ListenerCertificate]


class Reloaded(msgspec.Struct, frozen=True):
    """The listeners whose key material is new."""

    changed: list[str]


class Pipelines(msgspec.Struct, frozen=True):
    """The tables of topics: state, rows, lag."""

    pipelines: list[dict[str, Any]]


class TopicResults(msgspec.Struct, frozen=True):
    """A result for each topic, with ``error`` for one that failed."""

    topics: list[dict[str, Any]]


class Failure(msgspec.Struct, frozen=True):
    """Any answer but success. ``error`` is for programs, ``message`` for people."""

    error: str
    message: str
