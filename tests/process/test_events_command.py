"""``millstream events``: what is pushed is consumed, exported and imported again; the chunks verify."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.cli.__main__ import main
from millstream.events import EventsClient
from millstream.format.events.mofka import PADDED_RECORD

pytestmark = pytest.mark.process

DESCRIPTOR_BYTES = 56


@pytest.fixture
def run(broker, capfd):
    def call(*words, code=0, to_broker=True):
        address = ("--bootstrap", broker.bootstrap) if to_broker else ()
        assert main(["events", *map(str, words), *address]) == code, capfd.readouterr()
        return capfd.readouterr()

    return call


def lines(text):
    return [json.loads(one) for one in text.splitlines()]


def test_files_come_back_through_consume_and_through_export_and_import(run, tmp_path):
    files = []
    for number in range(5):
        files.append(tmp_path / f"frame{number}.raw")
        files[-1].write_bytes(bytes([number]) * 1000 * number)
    run("create", "frames", "--partitions", 2, "--config", "retention.ms=-1")
    assert "5 events, 9.8 KiB" in run("push", "frames", *files, "--metadata", '{"run": 7}').err
    found = lines(run("consume", "frames", "--data", tmp_path / "got").out)
    assert sorted((one["metadata"]["name"], one["metadata"]["run"], one["size"]) for one in found) == [
        (f"frame{number}.raw", 7, 1000 * number) for number in range(5)
    ]
    for one in found:
        data = (tmp_path / "got" / f"{one['partition']}-{one['id']}").read_bytes()
        assert data == (tmp_path / one["metadata"]["name"]).read_bytes()
    run("export", "frames", tmp_path / "out")
    run("create", "again")
    assert "5 events, 9.8 KiB" in run("import", tmp_path / "out", "again").err
    assert json.loads(run("describe", "again", "--json").out)["partitions"]["0"]["next_id"] == 5
    assert "frames" in run("describe").out
    assert "name an empty directory" in run("export", "frames", tmp_path / "out", code=2).err


def test_a_named_consumer_goes_on_and_a_partition_of_mofkas_is_imported(run, tmp_path):
    meta, data, index, desc = b"", b"", b"", 0
    for number in range(6):
        text, payload = json.dumps({"n": number}).encode(), b"x" * number
        text = struct.pack("<Q", len(text)) + text
        index += PADDED_RECORD.pack(len(meta), len(text), len(data), len(payload), desc, DESCRIPTOR_BYTES)
        meta, data, desc = meta + text, data + payload, desc + DESCRIPTOR_BYTES
    for suffix, content in ((".meta", meta), (".data", data), (".idx", index), (".desc", bytes(desc))):
        (tmp_path / f"chunk-000000{suffix}").write_bytes(content)
    run("create", "mofka")
    run("import", tmp_path, "mofka")
    assert [one["metadata"]["n"] for one in lines(run("consume", "mofka", "--name", "a", "-n", 4).out)] == [0, 1, 2, 3]
    assert [(one["id"], one["size"]) for one in lines(run("consume", "mofka", "--name", "a").out)] == [(4, 4), (5, 5)]


def test_failures_are_sentences(run, tmp_path):
    assert "there is no event topic 'nothing'" in run("consume", "nothing", code=1).err
    assert "compact needs keys" in run("create", "bad", "--config", "cleanup.policy=compact", code=1).err
    assert "nothing to import" in run("import", tmp_path, "frames", code=1).err
    (tmp_path / "lines").write_text('{"a": 1}\nno JSON\n')
    run("create", "some")
    assert "line 2 is no JSON" in run("push", "some", "--lines", tmp_path / "lines", code=1).err


def test_verify_finds_damage_in_a_chunk(broker_factory, tmp_path, capfd):
    broker = broker_factory(shards=1, data_dir=tmp_path / "data")
    (tmp_path / "lines").write_text("".join(f'{{"n": {n}}}\n' for n in range(50)))
    address = ("--bootstrap", broker.bootstrap)
    assert main(["events", "create", "t", *address]) == 0
    assert main(["events", "push", "t", "--lines", str(tmp_path / "lines"), *address]) == 0
    broker.stop()
    assert main(["events", "verify", "--data", str(broker.data_dir), "--deep"]) == 0
    (chunk,) = broker.data_dir.glob("topics/*/t-*/chunk-000000.meta")
    chunk.write_bytes(chunk.read_bytes().replace(b'{"n":30}', b'{"n":99}'))
    assert main(["events", "verify", "--data", str(broker.data_dir), "--json"]) == 1
    assert '"t/0"' in capfd.readouterr().out


def test_the_example_fetches_what_it_selects_and_draws_it(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "relief" / "run.py"
    picture = tmp_path / "relief.png"
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, example, picture], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "50 tiles reach 750 m and were fetched whole" in done.stdout
    assert "every height that was fetched is the one that was pushed" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_damaged_sidecar_is_told_by_file_and_costs_its_own_partition_alone(broker_factory, tmp_path, capfd, end):
    broker = broker_factory(shards=1, data_dir=tmp_path / "data")
    (tmp_path / "lines").write_text("".join(f'{{"n": {n}}}\n' for n in range(50)))
    for name in ("hurt", "well"):
        address = ("--bootstrap", broker.bootstrap)
        assert main(["events", "create", name, *address]) == 0
        assert main(["events", "push", name, "--lines", str(tmp_path / "lines"), *address]) == 0
    broker.stop()  # everything is in the chunks
    broker.start()
    address = ("--bootstrap", broker.bootstrap)
    assert main(["events", "push", "hurt", "--lines", str(tmp_path / "lines"), *address]) == 0
    getattr(broker, end)()
    (sidecar,) = broker.data_dir.glob("topics/*/hurt-*/chunk-000000.crc")
    data = bytearray(sidecar.read_bytes())
    data[10] ^= 1
    sidecar.write_bytes(data)
    capfd.readouterr()
    assert main(["events", "verify", "--data", str(broker.data_dir), "--json"]) == 1
    assert "chunk-000000.crc" in capfd.readouterr().out
    broker.start()
    assert f"{sidecar}: no sidecar header" in broker.log_path.read_text()
    with (
        EventsClient(broker.bootstrap, timeout_s=60) as client,
        client.open_topic("well").consumer("c", targets=[0]) as consumer,
    ):
        assert [consumer.pull(60).metadata["n"] for _ in range(50)] == list(range(50))
    assert sidecar.exists(), "a person may mend it"
