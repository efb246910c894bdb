"""Sets up the share state of new partitions, as a part of the heartbeat.

A heartbeat that finds partitions without state writes them as *initializing* (record 15), then asks the share
coordinator to set up their state with the start -1, which their leader resolves. What it confirms becomes
*initialized*. The rest stays *initializing*, because it may have been set up, and a later heartbeat asks again. The
same holds for what an earlier coordinator asked for. At most one request at a time names a partition: a later one could
reset a state that is in use since the earlier one. A request that is late for another reason has an older group epoch,
and is fenced; setting up a state of the same epoch again changes nothing.
"""

from typing import Final, TypeAlias

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.outputs import StateResponse
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.share_records.states import Named, NamedPartitions, ShareStates
from millstream.core.group.step import Step
from millstream.core.group.topics import NEVER_CHECKED
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeStatePartition,
    InitializeStateTopic,
)
from millstream.wire.messages.share_group_storage import ShareGroupStatePartitionMetadataKey

Errors: TypeAlias = dict[tuple[bytes, int], tuple[ErrorCode, str | None]]
"""Topic id and partition → what went wrong."""

RETRY_MS: Final = 1_000
"""Bounds what a share coordinator that is away costs: members of a large group send a heartbeat every few ms."""
UNKNOWN_START: Final = -1
"""Start of a state that the partition's leader resolves."""


def missing_states(step: Step, share: ShareGroup) -> NamedPartitions:
    """Partitions of subscribed topics whose state neither exists nor is being asked for."""
    missing: dict[bytes, Named] = {}
    nothing = Named("", frozenset())
    for name in share.subscribed_names():
        topic = step.topics.by_name(name)
        if topic is None:
            continue
        there = share.states.initialized.get(topic.topic_id, nothing).partitions
        lacking = frozenset(range(topic.partitions)) - there - share.requests.in_flight.get(topic.topic_id, frozenset())
        if lacking:
            missing[topic.topic_id] = Named(name, lacking)
    return missing


def put_states(change: GroupChange[ShareGroup], states: ShareStates) -> None:
    """Decide for which partitions the share state exists."""
    change.put(ShareGroupStatePartitionMetadataKey(change.content.group_id), states.value())


def note_asked(change: GroupChange[ShareGroup], missing: NamedPartitions) -> InitializeShareGroupStateRequest:
    """Write the partitions as initializing. Returns what to ask once that is durable."""
    share = change.content
    states = share.states.begun(missing, is_whole=True)
    if states != share.states:
        put_states(change, states)
    unknown = {topic_id: dict.fromkeys(one.partitions, UNKNOWN_START) for topic_id, one in missing.items()}
    return request_for(share, unknown)


def asks(share: ShareGroup, missing: NamedPartitions) -> None:
    """The request is on its way: no other one asks for these partitions until it is answered."""
    for topic_id, named in missing.items():
        share.requests.in_flight[topic_id] = share.requests.in_flight.get(topic_id, frozenset()) | named.partitions


def answered(step: Step, share: ShareGroup, missing: NamedPartitions, *, failed: bool) -> None:
    """The request has been answered. What has failed is asked for again, after `RETRY_MS` at the earliest."""
    for topic_id, named in missing.items():
        share.requests.in_flight[topic_id] -= named.partitions
        if not share.requests.in_flight[topic_id]:
            del share.requests.in_flight[topic_id]
    if failed:
        share.checked_revision = NEVER_CHECKED
        share.requests.retry_us = step.now_us + RETRY_MS * 1000


def request_for(share: ShareGroup, starts: dict[bytes, dict[int, int]]) -> InitializeShareGroupStateRequest:
    """The request that sets up the states at ``starts`` (topic id → partition → offset)."""
    topics = [
        InitializeStateTopic(
            topic_id,
            [InitializeStatePartition(partition, share.epoch, start) for partition, start in sorted(one.items())],
        )
        for topic_id, one in sorted(starts.items())
    ]
    return InitializeShareGroupStateRequest(group_id=share.group_id, topics=topics)


def settle(change: GroupChange[ShareGroup], wanted: NamedPartitions, response: StateResponse) -> Errors:
    """Write which of ``wanted`` are initialized now. Returns the errors of the others."""
    errors = errors_of(response)
    there: dict[bytes, Named] = {}
    states = change.content.states
    for topic_id, named in wanted.items():
        if not states.knows(topic_id):
            continue  # the topic was deleted while it was asked for
        good = frozenset(partition for partition in named.partitions if (topic_id, partition) not in errors)
        if topic_id in states.initialized:
            good |= named.partitions & states.initialized[topic_id].partitions
        if good:
            there[topic_id] = Named(named.name, good)
    if there:
        put_states(change, states.confirmed(there))
    return errors


def errors_of(response: StateResponse) -> Errors:
    """The errors of a response, by topic id and partition."""
    return {
        (topic.topic_id, one.partition): (ErrorCode(one.error_code), one.error_message)
        for topic in response.results
        for one in topic.partitions
        if one.error_code
    }
