"""Share groups in a cluster of which not every broker knows them yet."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.core.controller.commands import SHARE_GROUPS
from millstream.core.controller.features import has_share_groups
from millstream.kafka import dispatch
from millstream.kafka.served import SERVED
from millstream.kafka.served import SHARE_GROUPS as APIS
from millstream.model.cluster import FeatureLevel

BEFORE = FeatureLevel(SHARE_GROUPS - 1)


def asked(level: int) -> tuple[int, list[str]]:
    """How often the handler ran, and why the connection was closed."""
    ran: list[object] = []
    closed: list[str] = []
    intake = SimpleNamespace(refuse=lambda _, why: closed.append(why))
    context = SimpleNamespace(connection=SimpleNamespace(intake=intake), api=SimpleNamespace(name="ShareFetch"))
    node = SimpleNamespace(metadata=SimpleNamespace(state=SimpleNamespace(feature_level=level)))
    handle = dispatch._where_known(lambda *given: ran.append(given))  # pyright: ignore[reportPrivateUsage]
    handle(cast(Any, node), cast(Any, context), cast(Any, None))
    return len(ran), closed


@pytest.mark.parametrize("level", [0, int(SHARE_GROUPS), int(SHARE_GROUPS) + 1])
def test_they_are_served_where_every_broker_knows_them(level: int) -> None:
    assert has_share_groups(FeatureLevel(level))
    assert asked(level) == (1, [])


def test_before_that_a_request_is_as_unknown_as_to_an_older_broker() -> None:
    assert not has_share_groups(BEFORE)
    assert asked(BEFORE) == (0, ["asked for ShareFetch, which not every broker knows yet"])


def test_the_apis_of_share_groups_are_served() -> None:
    assert set(SERVED) >= APIS
