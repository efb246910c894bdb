"""Brokers answer each other's questions about transactions from the moment that their own are made."""

from types import SimpleNamespace
from unittest.mock import MagicMock

from millstream.config.settings import Settings
from millstream.coordinator.across_brokers import ADD_PARTITIONS, WRITE_MARKER, AcrossBrokers
from millstream.coordinator.transactions import Transactions


def test_other_brokers_are_answered_as_soon_as_transactions_are_made(tmp_path):
    served = {}
    across = AcrossBrokers(SimpleNamespace(serve=served.__setitem__), MagicMock(), MagicMock())
    shard = SimpleNamespace(id=0, count=1, mailbox=MagicMock(), reactor=MagicMock(), stats=MagicMock())
    settings = Settings(data_dir=str(tmp_path), shards=1)
    Transactions(shard, settings, MagicMock(), MagicMock(), MagicMock(), MagicMock(), MagicMock(), across)
    assert set(served) == {ADD_PARTITIONS, WRITE_MARKER}
