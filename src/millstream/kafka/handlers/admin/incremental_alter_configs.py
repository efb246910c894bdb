"""IncrementalAlterConfigs: change single properties of resources (KIP-339).

All changes of one resource are made or none. Results are in the order of the request. A broker's live settings can be
changed for this broker by its id, or for every broker by the empty name; changes outlive a restart.
"""

from millstream.core.controller.requests import ConfigChange
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.admin.config_alteration import Asked, alter
from millstream.wire.messages.alter_configs import AlterConfigsResourceResponse
from millstream.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def handle(node: Node, ctx: RequestContext, request: IncrementalAlterConfigsRequest) -> None:
    """Let the controller change configurations."""
    asked = [
        Asked(
            resource.resource_type,
            resource.resource_name,
            tuple(ConfigChange(change.name, change.config_operation, change.value) for change in resource.configs),
        )
        for resource in request.resources
    ]

    def done(answers: list[AlterConfigsResourceResponse]) -> None:
        ctx.respond(IncrementalAlterConfigsResponse(responses=answers))

    alter(node, asked, done, validate_only=request.validate_only, replace=False)
