"""Share groups in ``millstream group`` and in the console, on a real broker with a stock consumer."""

import json
import re
import urllib.error
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


def http(broker, method, path, body=None):
    """Status and document of an answer of the HTTP port."""
    headers = {} if body is None else {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.http + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def move_and_delete(broker, pages, lag):
    """What HTTP and the console change of a share group without members, which starts at the beginning."""
    path, dry = f"/v1/groups/{GROUP}", "?dry_run=true"
    edits = [{"action": "replace", "what": f"jobs-{number}", "before": 0, "after": 10} for number in range(2)]
    assert http(broker, "POST", f"{path}/offsets{dry}", {"to": "latest"}) == (200, {"dry_run": True, "edits": edits})
    assert lag() == RECORDS
    assert http(broker, "POST", f"{path}/offsets", {"to": "latest"})[1]["edits"] == edits
    assert lag() == 0
    token = re.search(r'name="token" value="([^"]+)"', pages.get(f"/group/reset?id={GROUP}").text)[1]
    form = {"token": token, "id": GROUP, "step": "do", "at": "jobs 0:3,1:4"}
    moved = pages.post("/group/reset", data=form, headers={"Origin": "http://localhost"})
    assert moved.status_code == 303, moved.text
    assert [one["offset"] for one in http(broker, "GET", f"{path}/offsets")[1]["offsets"]] == [3, 4]

    gone = [{"action": "remove", "what": f"jobs-{number}", "before": 3 + number, "after": None} for number in range(2)]
    forget = f"{path}/offsets?topic=jobs"
    assert http(broker, "DELETE", forget + "&dry_run=true") == (200, {"dry_run": True, "edits": gone})
    assert http(broker, "DELETE", forget)[1]["edits"] == gone
    assert http(broker, "DELETE", forget)[1]["edits"] == []
    assert http(broker, "GET", f"{path}/offsets")[1]["offsets"] == []
    removed = [{"action": "remove", "what": f"share group {GROUP}", "before": {"offsets": 0}, "after": None}]
    assert http(broker, "DELETE", path + dry)[1]["edits"] == removed
    assert http(broker, "DELETE", path)[1]["edits"] == removed
    assert http(broker, "GET", path)[1]["error"] == "GROUP_ID_NOT_FOUND"


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

    path, dry = f"/v1/groups/{GROUP}", "?dry_run=true"
    status, group = http(broker, "GET", path)
    assert (status, group["type"], group["state"]) == (200, "share", "Stable")
    (member,) = group["members"]
    assert member["client_id"] == "worker-1"
    assert member["partitions"] == [{"topic": "jobs", "partition": 0}, {"topic": "jobs", "partition": 1}]
    at = {"topic": "jobs", "partition": 0, "offset": 10, "end_offset": 10, "lag": 0}
    assert http(broker, "GET", f"{path}/offsets")[1]["offsets"] == [at, {**at, "partition": 1}]
    for query in ("", dry):
        for method, place in (("POST", f"{path}/offsets{query}"), ("DELETE", path + query)):
            wanted = {"to": "earliest"} if method == "POST" else None
            assert http(broker, method, place, wanted)[1]["error"] == "NON_EMPTY_GROUP", (method, place)

    application = create(Settings(broker.bootstrap))
    pages = application.test_client()
    assert "workers" in pages.get("/groups").text
    page = pages.get(f"/group?id={GROUP}").text
    assert "worker-1" in page and "share" in page and "Reset offsets" in page
    assert ">Start<" in page and ">Committed<" not in page

    consumer.close()
    until(lambda: shown()["state"] == "empty", "the member has not left")
    assert millstream("group", "reset", GROUP, "--to", "earliest", "--all-topics", "--execute")[0] == 0
    assert shown()["lag"] == RECORDS
    move_and_delete(broker, pages, lambda: shown()["lag"])
    application.extensions["console"].close()
    assert millstream("group", "describe", GROUP)[0] == 1
