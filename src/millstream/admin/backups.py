"""The backups in the place that ``backup.url`` names, as ``GET /v1/backups`` shows them."""

import msgspec


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
