"""``millstream backup``: what was in a cluster is in another one afterwards, at the same offsets."""

import pytest
from backup_support import (
    admin,
    command,
    commit,
    committed,
    create,
    delete_before,
    ends,
    history,
    produce,
    transactions,
)

from millstream.testing.process import Broker

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci]

VALUES = [f"value-{number}" for number in range(400)]


def test_records_and_offsets_of_groups_are_restored_to_another_layout(tmp_path):
    store = f"file://{tmp_path}/store"
    with Broker({"plain": 3}, shards=2) as broker:
        create(broker, "trimmed", retention_ms=123456789)
        create(broker, "kept", cleanup_policy="compact", max_message_bytes=70000)
        create(broker, "many")
        for partition in range(3):
            produce(broker, "plain", VALUES, partition, **{"enable.idempotence": True, "compression.type": "zstd"})
        produce(broker, "trimmed", VALUES, **{"batch.num.messages": 50})
        produce(broker, "kept", VALUES)
        delete_before(broker, "trimmed", 0, 123)
        transactions(broker, "many", ["commit", "abort", "open"])
        commit(broker, "readers", {("plain", 1): (77, "words"), ("trimmed", 0): (400, "")})

        first = command("create", "--to", store, "--bootstrap", broker.bootstrap)
        assert first["written_bytes"] == first["bytes"] > 0
        produce(broker, "plain", ["later"], 2)
        second = command("create", "--to", store, "--data", broker.data_dir)
        assert 0 < second["written_bytes"] < 300, "what the first one has is not written again"
        assert command("verify", "--from", store)["faults"] == []
        before = {place: history(broker, *place) for place in (("plain", 0), ("plain", 2), ("trimmed", 0), ("kept", 0))}
        many = history(broker, "many")
        refused = command("restore", "--from", store, "--bootstrap", broker.bootstrap, expect=1)
        assert "the cluster has topics (kept, many, plain, trimmed)" in refused

    listed = command("list", "--from", store)
    assert [one["name"] for one in listed["backups"]] == [first["name"], second["name"]]
    with Broker(shards=1) as other:
        restored = command("restore", "--from", store, "--bootstrap", other.bootstrap)
        assert restored["aborted_transactions"] == 1
        assert {place: history(other, *place) for place in before} == before
        assert history(other, "many") == many != []
        assert ends(other, "many") == [(0, 18)], "three times five, two markers, and the one of what was open"
        assert ends(other, "trimmed") == [(123, 400)]
        assert committed(other, "readers", [("plain", 1), ("trimmed", 0)]) == {
            ("plain", 1): (77, "words"),
            ("trimmed", 0): (400, ""),
        }
        assert sorted(admin(other).list_topics(timeout=60).topics.keys() - {"__consumer_offsets"}) == [
            "kept",
            "many",
            "plain",
            "trimmed",
        ]
        produce(other, "plain", VALUES, 0, **{"enable.idempotence": True})
        transactions(other, "many", ["commit"])
        assert [one.value for one in history(other, "plain")] == [value.encode() for value in VALUES * 2]
        settings = command("create", "--to", f"file://{tmp_path}/again", "--bootstrap", other.bootstrap)
        assert settings["topics"] == 4
        other.kill()
        other.start()
        assert history(other, "trimmed") == before["trimmed", 0], "a crash after it loses nothing"
