"""AlterConfigs: replace the whole configuration of resources.

The predecessor of IncrementalAlterConfigs: a property that the request does not name returns to its default. Each
resource has its own result. Logger levels cannot be changed this way, as in Kafka.
"""

from millstream.core.controller.requests import ConfigChange, ConfigOperation
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.admin.config_alteration import Asked, alter
from millstream.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def handle(node: Node, ctx: RequestContext, request: AlterConfigsRequest) -> None:
    """Let the controller replace configurations."""
    asked = [
        Asked(
            resource.resource_type,
            resource.resource_name,
            tuple(ConfigChange(config.name, ConfigOperation.SET, config.value) for config in resource.configs),
        )
        for resource in request.resources
    ]

    def done(answers: list[AlterConfigsResourceResponse]) -> None:
        ctx.respond(AlterConfigsResponse(responses=answers))

    alter(node, asked, done, validate_only=request.validate_only, replace=True)
