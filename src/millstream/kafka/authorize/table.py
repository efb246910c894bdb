"""The guards of all served APIs, and the rights that they ask for."""

from millstream.kafka.authorize import admin, data, events, groups, share_groups, streams_groups, transactions
from millstream.kafka.rights import GUARDS, RIGHTS, Guard
from millstream.model.quantities import ApiKey

__all__ = ["RIGHTS", "admin", "data", "events", "groups", "guard_of", "share_groups", "streams_groups", "transactions"]


def guard_of(key: ApiKey) -> Guard:
    """The guard of a served API: every one has one."""
    return GUARDS[key]
