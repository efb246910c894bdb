"""Share groups and streams groups in a cluster of which not every broker knows them yet."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.core.controller import commands
from millstream.core.controller.features import has_share_groups, has_streams_groups
from millstream.kafka import dispatch
from millstream.kafka.served import SERVED, SHARE_GROUPS, STREAMS_GROUPS
from millstream.model.cluster import FeatureLevel

Has = Callable[[FeatureLevel], bool]
KINDS = [(has_share_groups, int(commands.SHARE_GROUPS)), (has_streams_groups, int(commands.STREAMS_GROUPS))]


def asked(has: Has, level: int) -> tuple[int, list[str]]:
    """How often the handler ran, and why the connection was closed."""
    ran: list[object] = []
    closed: list[str] = []
    intake = SimpleNamespace(refuse=lambda _, why: closed.append(why))
    context = SimpleNamespace(connection=SimpleNamespace(intake=intake), api=SimpleNamespace(name="ShareFetch"))
    node = SimpleNamespace(metadata=SimpleNamespace(state=SimpleNamespace(feature_level=level)))
    handle = dispatch._where_known(lambda *given: ran.append(given), has)  # pyright: ignore[reportPrivateUsage]
    handle(cast(Any, node), cast(Any, context), cast(Any, None))
    return len(ran), closed


@pytest.mark.parametrize(("has", "since"), KINDS)
def test_they_are_served_where_every_broker_knows_them(has: Has, since: int) -> None:
    for level in (0, since, since + 1):
        assert has(FeatureLevel(level))
        assert asked(has, level) == (1, [])


@pytest.mark.parametrize(("has", "since"), KINDS)
def test_before_that_a_request_is_as_unknown_as_to_an_older_broker(has: Has, since: int) -> None:
    assert not has(FeatureLevel(since - 1))
    assert asked(has, since - 1) == (0, ["asked for ShareFetch, which not every broker knows yet"])


def test_their_apis_are_served() -> None:
    assert set(SERVED) >= SHARE_GROUPS | STREAMS_GROUPS
