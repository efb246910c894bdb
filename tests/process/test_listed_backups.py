"""``GET /v1/backups``: what is in the place that a setting names."""

import json
import urllib.error
import urllib.request

import pytest

from millstream.testing.stem import run_command

pytestmark = pytest.mark.process


def backups(broker):
    try:
        with urllib.request.urlopen(f"{broker.http}/v1/backups", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_backups_are_listed_and_damaged_ones_are_named(broker_factory, tmp_path):
    place = tmp_path / "backups"
    place.mkdir()
    broker = broker_factory(settings={"backup.url": f"file://{place}"}, topics=["orders"], shards=1)
    assert backups(broker) == (200, {"url": f"file://{place}", "backups": [], "damaged": []})
    for _ in range(2):
        made = run_command("backup", "create", "--to", f"file://{place}", "--data", broker.data_dir)
        assert made.returncode == 0, made.stderr
    status, found = backups(broker)
    assert (status, len(found["backups"]), found["damaged"]) == (200, 2, [])
    assert found["backups"][1]["name"] == made.stdout.strip()
    assert found["backups"][1]["topics"] == 1
    (root,) = place.rglob(f"{made.stdout.strip()}.json")
    root.write_bytes(root.read_bytes()[:-9])
    status, found = backups(broker)
    assert (status, len(found["backups"]), len(found["damaged"])) == (200, 1, 1)


def test_without_a_place_or_with_one_that_is_not_there_it_says_so(broker, broker_factory, tmp_path):
    status, said = backups(broker)
    assert (status, "backup.url is not set" in said["message"]) == (400, True)
    (tmp_path / "file").write_text("")
    other = broker_factory(settings={"backup.url": f"file://{tmp_path}/file/below"}, shards=1)
    status, said = backups(other)
    assert (status, str(tmp_path) in said["message"]) == (503, True), said
