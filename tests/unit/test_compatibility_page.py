"""The page of what is compatible: nothing that the broker serves or refuses is left out of it."""

import contextlib
import json
import socket
import struct
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.compatibility import page, record

from millstream.config.topic_properties import TOPIC_PROPERTIES
from millstream.kafka.served import SERVED, advertised_versions
from millstream.wire.apis import api_name


def test_every_api_and_every_topic_configuration_stands_on_the_page():
    text = page.compatibility_page()
    for key, (low, high) in advertised_versions().items():
        assert f"| {key} | {api_name(key)} | {page.versions(low, high)} |" in text
    for name, declaration in TOPIC_PROPERTIES.items():
        assert (f"[`{name}`]" in text) is not declaration.hidden


def test_an_api_of_kafka_that_is_neither_served_nor_explained_is_found():
    kafka = {"apis": {str(key): [0, 1] for key in SERVED} | {"9999": [0, 0]}}
    with pytest.raises(SystemExit, match="API 9999 is neither served nor"):
        page.not_served_table(kafka)


def test_what_a_broker_advertises_is_read_from_its_answer():
    answer = struct.pack(">ihi", 1, 0, 2) + struct.pack(">hhhhhh", 3, 0, 13, 0, 3, 12)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(struct.pack(">i", len(answer)) + answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with contextlib.ExitStack() as stack:
            stack.callback(thread.join)
            assert record.advertised(f"127.0.0.1:{server.getsockname()[1]}") == [(0, [3, 12]), (3, [0, 13])]


def test_only_whole_runs_of_suites_that_could_run_count(tmp_path, monkeypatch):
    outcomes = [{"state": "passed"}, {"state": "passed"}, {"state": "skipped"}]
    run = {"version": "1", "date": "2026-01-01", "only": [], "unavailable": "", "outcomes": outcomes}
    runs = {"whole": run, "part": {**run, "only": ["a"]}, "gone": {**run, "unavailable": "no npm"}}
    path = tmp_path / "last.json"
    path.write_text(json.dumps(runs))
    monkeypatch.setattr(record, "LAST_RUNS", path)
    assert record.client_facts() == {
        "whole": {"version": "1", "date": "2026-01-01", "passed": 2, "failed": 0, "skipped": 1}
    }
