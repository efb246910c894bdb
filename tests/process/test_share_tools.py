"""Share groups in ``millstream group`` and in the console, on a real broker with a stock consumer."""

import json
import urllib.request

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from millstream.cli.__main__ import main
from millstream.console.application import create
from millstream.console.settings import Settings
from millstream.testing.process import Broker
from waits import until

pytestmark = pytest.mark.process

GROUP = "workers"
RECORDS = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(None, {}, tmp_path_factory.mktemp("tools"), shards=2) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic("jobs", 2, 1)])["jobs"].result()
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result()
        producer = ck.Producer({"bootstrap.servers": started.bootstrap})
        for number in range(RECORDS):
            producer.produce("jobs", str(number), partition=number % 2)
        assert producer.flush(60) == 0
        yield started


@pytest.fixture
def millstream(broker, capsys):
    def run(*words):
        capsys.readouterr()
        code = main([*words, "--bootstrap", broker.bootstrap])
        return code, capsys.readouterr()

    return run


def test_a_share_group_is_listed_described_reset_and_deleted(broker, millstream):
    def shown():
        return json.loads(millstream("group", "describe", GROUP, "--json")[1].out)

    consumer = ck.ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP, "client.id": "worker-1"})
    consumer.subscribe(["jobs"])
    got = []
    until(lambda: got.extend(consumer.poll(1.0)) or len(got) >= RECORDS, "the records do not come")
    until(lambda: consumer.poll(0.1) is not None and shown()["lag"] == 0, "the last ones are not acknowledged")
    document = shown()
    assert (document["type"], document["state"], document["members"]) == ("share", "stable", 1)
    assert [one["start"] for one in document["partitions"]] == [RECORDS / 2] * 2
    for kind, names in (("share", [GROUP]), ("consumer", [])):
        listed = json.loads(millstream("group", "list", "--type", kind, "--json")[1].out)
        assert [one["group"] for one in listed] == names
    assert "workers" in millstream("group", "list", "--state", "stable")[1].out
    assert millstream("group", "list", "--state", "empty", "--type", "share")[1].out == ""
    code, said = millstream("group", "reset", GROUP, "--to", "earliest", "--all-topics", "--execute")
    assert code == 1 and "is active with 1 member" in said.err

    with urllib.request.urlopen(f"{broker.http}/v1/groups", timeout=60) as answer:
        (listed,) = json.load(answer)["groups"]
    assert listed == {"name": GROUP, "state": "Stable", "members": 1, "lag": {}, "type": "share"}

    application = create(Settings(broker.bootstrap))
    pages = application.test_client()
    assert "workers" in pages.get("/groups").text
    page = pages.get(f"/group?id={GROUP}").text
    assert "worker-1" in page and "share" in page and "Reset offsets" not in page
    assert ">Start<" in page and ">Committed<" not in page
    application.extensions["console"].close()

    consumer.close()
    until(lambda: shown()["state"] == "empty", "the member has not left")
    assert millstream("group", "reset", GROUP, "--to", "earliest", "--all-topics", "--execute")[0] == 0
    assert shown()["lag"] == RECORDS
    assert millstream("group", "delete", GROUP)[0] == 0
    assert millstream("group", "describe", GROUP)[0] == 1
