"""API key 57, UpdateFeatures: raise or lower the level of a feature (KIP-584, KIP-778).

Version 1 replaced ``allow_downgrade`` by the kind of change, and can only validate; version 2 answers for all features
at once.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int8, Int16, Int32, Message, Request, Response


class FeatureUpdateKey(Message):
    """The level that a feature shall have. ``upgrade_type``: 1 upgrade, 2 safe downgrade, 3 unsafe downgrade."""

    feature: str = ""
    max_version_level: Int16 = 0
    allow_downgrade: Annotated[bool, F("0")] = False
    upgrade_type: Annotated[Int8, F("1+")] = 1


class UpdateFeaturesRequest(Request, api_key=57, versions=(0, 2), flexible=0):
    """Change levels: all of them or none."""

    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: Annotated[bool, F("1+")] = False


class UpdatableFeatureResult(Message):
    """The outcome for one feature."""

    feature: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""


class UpdateFeaturesResponse(Response, api_key=57, versions=(0, 2), flexible=0):
    """The outcome."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    results: Annotated[list[UpdatableFeatureResult], F("0-1")] = []
