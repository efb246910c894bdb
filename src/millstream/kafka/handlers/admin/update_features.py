"""UpdateFeatures: raise or lower the levels of features. All of them change or, with the first reason, none."""

from typing import Final

from millstream.core.controller.features import SAFE_DOWNGRADE, UPGRADE
from millstream.core.controller.requests import Results, UpdateFeatures
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.timeouts import bounded_ms
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_FAILED: Final = "The update failed for all features since the following feature had an error: "


def handle(node: Node, ctx: RequestContext, request: UpdateFeaturesRequest) -> None:
    """Have the controller judge the levels."""
    version = ctx.api_version

    def answered(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            code = results.code or ErrorCode.UNKNOWN_SERVER_ERROR
            ctx.respond(UpdateFeaturesResponse(error_code=code, error_message=results.message))
        elif results[0].error:
            message = _FAILED + (results[0].message or "")
            ctx.respond(UpdateFeaturesResponse(error_code=results[0].error, error_message=message))
        else:
            changed = [UpdatableFeatureResult(each.feature, 0, ErrorCode.NONE.name) for each in request.feature_updates]
            ctx.respond(UpdateFeaturesResponse(error_message=None, results=changed if version < 2 else []))

    updates = tuple((each.feature, each.max_version_level, _kind(each, version)) for each in request.feature_updates)
    node.controller.submit(UpdateFeatures(updates, request.validate_only), answered, bounded_ms(request.timeout_ms))


def _kind(update: FeatureUpdateKey, version: int) -> int:
    if version >= 1:
        return update.upgrade_type
    return SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
