"""API key 3, Metadata: brokers, topics, partitions and their leaders.

Version 4 lets the client forbid auto-creation, 5 reports offline replicas, 7 leader epochs, 8 to 10 authorised
operations, 10 topic ids, 12 lookups by id; 13 adds an error for the whole answer (KIP-1102).
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import ZERO_UUID, F, Int16, Int32, Message, Request, Response, Uuid


class MetadataRequestTopic(Message):
    """A topic by name, or by id with a null name (version 10 and later)."""

    topic_id: Annotated[Uuid, F("10+")] = ZERO_UUID
    name: Annotated[str | None, F(nullable="10+")] = ""


class MetadataRequest(Request, api_key=3, versions=(0, 13), flexible=9):
    """Where are these topics? ``None`` asks for all of them; version 0 says that with an empty list."""

    topics: Annotated[list[MetadataRequestTopic] | None, F(nullable="1+")] = []
    allow_auto_topic_creation: Annotated[bool, F("4+")] = True
    include_cluster_authorized_operations: Annotated[bool, F("8-10")] = False
    include_topic_authorized_operations: Annotated[bool, F("8+")] = False


class MetadataResponseBroker(Message):
    """A broker and the address at which clients reach it."""

    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: Annotated[str | None, F("1+")] = None


class MetadataResponsePartition(Message):
    """A partition: its leader, replicas and in-sync replicas."""

    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, F("7+")] = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    offline_replicas: Annotated[list[Int32], F("5+")] = []


class MetadataResponseTopic(Message):
    """A topic, or the reason why there is no answer about it."""

    error_code: Int16 = 0
    name: Annotated[str | None, F(nullable="12+")] = ""
    topic_id: Annotated[Uuid, F("10+")] = ZERO_UUID
    is_internal: Annotated[bool, F("1+")] = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[Int32, F("8+")] = OPERATIONS_NOT_ASKED


class MetadataResponse(Response, api_key=3, versions=(0, 13), flexible=9):
    """Brokers, controller and the topics that were asked for."""

    throttle_time_ms: Annotated[Int32, F("3+")] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[str | None, F("2+")] = None
    controller_id: Annotated[Int32, F("1+")] = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[Int32, F("8-10")] = OPERATIONS_NOT_ASKED
    error_code: Annotated[Int16, F("13+")] = 0
