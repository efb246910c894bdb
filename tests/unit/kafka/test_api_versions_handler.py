"""ApiVersions: what is remembered of the client that asks."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.core.controller.commands import FEATURE_LEVEL, SHARE_GROUPS, STREAMS_GROUPS
from millstream.kafka.handlers.admin import api_versions
from millstream.kafka.handlers.admin.api_versions import SOFTWARE_KEPT
from millstream.kafka.served import SHARE_GROUPS as APIS
from millstream.kafka.served import STREAMS_GROUPS as STREAMS_APIS
from millstream.wire.messages.api_versions import ApiVersionsRequest


def unknown_client():
    """A connection whose client has not said which library it uses."""
    return SimpleNamespace(client=SimpleNamespace(software=("", "")))


def _metadata(level: int = 0) -> Any:
    return SimpleNamespace(revision=1, state=SimpleNamespace(feature_level=level))


def _settings() -> Any:
    return SimpleNamespace(client_telemetry_topic="", transaction_version=2)


@pytest.mark.parametrize("level", [0, 2, int(SHARE_GROUPS) - 1, int(SHARE_GROUPS), int(STREAMS_GROUPS)])
def test_the_feature_level_of_the_cluster_is_a_feature_in_force(level: int) -> None:
    node = SimpleNamespace(settings=_settings(), metadata=_metadata(level))
    shares, streams = level in (0, SHARE_GROUPS, STREAMS_GROUPS), level in (0, STREAMS_GROUPS)
    share = [("share.version", 1, 1)] if shares else []
    share += [("streams.version", 1, 1)] if streams else []
    shown = [("millstream.version", level, level)] if level else []
    answers: list[Any] = []
    context = SimpleNamespace(api_version=4, connection=unknown_client(), respond=answers.append)
    api_versions.handle(cast(Any, node), cast(Any, context), ApiVersionsRequest("c", "1"))
    in_force = [(one.name, one.max_version_level, one.min_version_level) for one in answers[0].finalized_features]
    assert in_force == [("group.version", 1, 1), *share, ("transaction.version", 2, 2), *shown]
    supported = [(one.name, one.min_version, one.max_version) for one in answers[0].supported_features]
    assert ("millstream.version", 1, int(FEATURE_LEVEL)) in supported
    assert {("share.version", 0, 1), ("streams.version", 0, 1)} <= set(supported)
    keys = {one.api_key for one in answers[0].api_keys}
    assert keys & APIS == (APIS if shares else set()), "share groups are announced where every broker knows them"
    assert keys & STREAMS_APIS == (STREAMS_APIS if streams else set())


def test_of_a_long_name_of_its_library_the_beginning_is_kept_with_a_connection() -> None:
    node = SimpleNamespace(settings=_settings(), metadata=_metadata())
    answers: list[Any] = []
    context = SimpleNamespace(api_version=3, connection=unknown_client(), respond=answers.append)
    request = ApiVersionsRequest("n" * 30_000, "1" * 30_000)
    api_versions.handle(cast(Any, node), cast(Any, context), request)
    assert answers[0].error_code == 0
    assert context.connection.client.software == ("n" * SOFTWARE_KEPT, "1" * SOFTWARE_KEPT)
