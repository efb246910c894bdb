"""The epochs of a consumer group (KIP-848), from its coordinator, because confluent-kafka does not return them.

If the group epoch is ahead of the assignment epoch, a new assignment is due. A member whose epoch is behind has not
taken over its new partitions yet.
"""

from typing import NamedTuple

from millstream.cli import identity
from millstream.cli.failure import CommandFailed
from millstream.client.connection import Connection
from millstream.errors import MillstreamError
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)


class Epochs(NamedTuple):
    """Of a group, of its target assignment, and of each member by its id."""

    group: int
    assignment: int
    members: dict[str, int]


def group_epochs(name: str, host: str, port: int, timeout_s: float) -> Epochs:
    """The epochs of a consumer group, from its coordinator."""
    try:
        with Connection(host, port, timeout_s=timeout_s, security=identity.security()) as connection:
            request = ConsumerGroupDescribeRequest(group_ids=[name])
            (group,) = connection.ask(request, ConsumerGroupDescribeResponse).groups
    except MillstreamError as error:
        raise CommandFailed(f"group '{name}': {error.message}") from error
    if group.error_code:
        raise CommandFailed(f"group '{name}': {group.error_message or 'it is a consumer group no more'}")
    members = {member.member_id: member.member_epoch for member in group.members}
    return Epochs(group.group_epoch, group.assignment_epoch, members)
