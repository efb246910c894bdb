"""The broker that most tests of group requests ask, with one shard and with two."""

import pytest
from coordinator_fakes import Broker
from group_calls import broker_of


@pytest.fixture(params=[1, 2], ids=["one shard", "two shards"])
def broker(request) -> Broker:
    return broker_of(request.param)
