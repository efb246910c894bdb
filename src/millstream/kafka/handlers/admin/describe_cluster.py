"""DescribeCluster: the cluster's id, its controller and its brokers.

From version 1 on a client names brokers or controllers as its target. Every broker takes part in the controller and
takes what is asked of it, so both are answered, and ``--bootstrap-controller`` of Kafka's tools means the brokers. From
version 2 on a client may ask for brokers that are fenced, too: registered, and not alive.
"""

from typing import Final

from millstream.kafka.cluster_view import CLUSTER_OPERATIONS, brokers
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED

_TARGETS: Final = (1, 2)
"""Brokers, controllers."""


def handle(node: Node, ctx: RequestContext, request: DescribeClusterRequest) -> None:
    """Answer from the metadata cache."""
    if request.endpoint_type not in _TARGETS:
        ctx.respond(
            DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message=f"Unsupported endpoint type {request.endpoint_type}",
            )
        )
        return
    operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_NOT_ASKED
    ctx.respond(
        DescribeClusterResponse(
            endpoint_type=request.endpoint_type,
            cluster_id=node.metadata.cluster_id,
            controller_id=node.metadata.node_id,
            brokers=[
                DescribeClusterBroker(
                    broker_id=each.node_id,
                    host=each.host,
                    port=each.port,
                    rack=each.rack,
                    is_fenced=not node.metadata.is_alive(each.node_id),
                )
                for each in brokers(node, ctx, fenced=request.include_fenced_brokers)
            ],
            cluster_authorized_operations=operations,
        )
    )
