"""Share groups for tests: one that starts at the beginning, and a wait until it has finished everything.

A share group starts at the end of a topic unless a property says otherwise, at the first fetch of a member, and no API
of Kafka's says when that was. A test that sends a record too early would wait for it in vain, so `create` makes a group
that starts at the beginning. Waiting is asking: nothing is guessed from the time that has passed. A group that does not
get there in time is a ``TimeoutError`` that says what is left.
"""

import time
from typing import Final

from millstream.client.cluster import EARLIEST, GROUP_RESOURCE, LATEST, Cluster
from millstream.client.security import Security
from millstream.client.settings import change_settings
from millstream.client.share_groups import SharePosition, share_group

_CLIENT_ID: Final = "millstream-testing"

_ANSWER_S: Final = 60.0
"""An answer may take so long, however short the wait is: what is left is known only after it."""


def create(bootstrap: str, security: Security, group: str) -> None:
    """Have a share group start at the beginning of each topic.

    Raises:
        Rejected: the broker refuses it.
        Unavailable: no broker answers.
    """
    with Cluster(bootstrap, client_id=_CLIENT_ID, security=security) as cluster:
        change_settings(cluster.any_connection(), GROUP_RESOURCE, group, {"share.auto.offset.reset": "earliest"})


def wait_until_finished(bootstrap: str, security: Security, group: str, timeout_s: float) -> None:
    """Return when no record is left that a share group has been given, or will be.

    Raises:
        TimeoutError: it does not happen in time.
        Rejected: a right is missing.
        Unavailable: no broker answers.
    """
    until = time.monotonic() + timeout_s
    with Cluster(bootstrap, client_id=_CLIENT_ID, timeout_s=max(timeout_s, _ANSWER_S), security=security) as cluster:
        while left := _left(cluster, group):
            if time.monotonic() > until:
                raise TimeoutError(f"share group {group} after {timeout_s:g} s: {left}")
            time.sleep(0.02)


def _left(cluster: Cluster, group: str) -> str:
    """What a group has not finished, in words; empty if nothing."""
    found = share_group(cluster, group)
    if found is None:
        return "there is no such share group"
    if not found.positions:
        return "it has had no partition"
    left = [(one, _lag(cluster, one)) for one in found.positions]
    return ", ".join(f"{lag} records of {one.topic}-{one.partition}" for one, lag in left if lag)


def _lag(cluster: Cluster, one: SharePosition) -> int:
    """Records that are not finished. Where nothing was finished yet, all of the partition are."""
    if one.lag is not None:
        return one.lag
    place = one.topic, one.partition
    ends = cluster.list_offsets({place: LATEST}), cluster.list_offsets({place: EARLIEST})
    return ends[0][place].offset - ends[1][place].offset
