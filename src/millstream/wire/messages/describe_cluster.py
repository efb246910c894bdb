"""API key 60, DescribeCluster: the cluster's id, controller and brokers.

Version 1 tells brokers from controllers, 2 adds fenced brokers.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import F, Int8, Int16, Int32, Message, Request, Response


class DescribeClusterRequest(Request, api_key=60, versions=(0, 2), flexible=0):
    """Who is in the cluster? ``endpoint_type``: 1 brokers, 2 controllers."""

    include_cluster_authorized_operations: bool = False
    endpoint_type: Annotated[Int8, F("1+")] = 1
    include_fenced_brokers: Annotated[bool, F("2+")] = False


class DescribeClusterBroker(Message):
    """A broker and its address."""

    broker_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None
    is_fenced: Annotated[bool, F("2+")] = False


class DescribeClusterResponse(Response, api_key=60, versions=(0, 2), flexible=0):
    """The cluster's id, controller and brokers."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    endpoint_type: Annotated[Int8, F("1+")] = 1
    cluster_id: str = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: Int32 = OPERATIONS_NOT_ASKED
