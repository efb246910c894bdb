"""The route for backups: what is in the place that ``backup.url`` names."""

from typing import Any, Final, Protocol

import msgspec

from millstream.admin.declared import Declared
from millstream.admin.routing import Response, Right, dump
from millstream.model.access import Operation


class BackupView(msgspec.Struct, frozen=True):
    """A backup. Times are in ms since 1970; ``offsets`` counts those from start to end of all partitions, ``bytes`` the
    objects that it refers to. ``notes`` say what the cluster had and the backup has not.
    """

    name: str
    cluster_id: str
    version: str
    began_ms: int
    ended_ms: int
    topics: int
    partitions: int
    offsets: int
    bytes: int
    groups: int
    share_groups: int
    users: list[str]
    acls: int
    quotas: int
    notes: list[str]


class Backups(msgspec.Struct, frozen=True):
    """The backups at ``url``, oldest first. ``damaged`` names those whose root cannot be read."""

    url: str
    backups: list[BackupView]
    damaged: list[str]


class HasBackups(Protocol):
    """The broker, as far as backups go."""

    def backups(self) -> Backups:
        """Raises Rejected without a place, Unavailable if it cannot be read."""
        ...


BACKUP_ROUTES: Final[tuple[Declared[Any], ...]] = (
    Declared(
        method="GET",
        path="/v1/backups",
        doc="Backups in the place that `backup.url` names; `millstream backup` makes and restores them",
        needs=Right(Operation.DESCRIBE),
        handler=lambda broker, _: Response(dump(msgspec.to_builtins(broker.backups()))),
        answer=Backups,
    ),
)
"""Every route of backups."""
