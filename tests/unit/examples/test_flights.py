"""The demo reads its data set on every version of Python, with setuptools or without, and its proof can fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FLIGHTS = Path(__file__).resolve().parents[3] / "examples" / "flights"

READ = """
import json, sys
sys.modules["pkg_resources"] = None  # as where setuptools is not installed
from load import read_tables, rows
tables = read_tables()
key, value = next(rows(*tables["flights"]))
print(json.dumps([{name: len(table) for name, (table, _) in tables.items()}, key, json.loads(value)]))
"""


def test_the_data_set_is_read_from_the_files_of_its_package():
    done = subprocess.run([sys.executable, "-c", READ], cwd=FLIGHTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lengths, key, first = json.loads(done.stdout)
    assert lengths == {"airlines": 16, "airports": 1458, "planes": 3322, "weather": 26115, "flights": 336776}
    assert key == first["tailnum"] == "N14228"
    assert first["origin"] == "EWR" and first["year"] == 2013


@pytest.fixture
def proof(monkeypatch):
    pytest.importorskip("deltalake")
    monkeypatch.syspath_prepend(str(FLIGHTS))
    import proof

    yield proof
    for name in ("proof", "load", "broker"):
        sys.modules.pop(name, None)


def test_the_proof_finds_what_is_missing_and_what_is_there_twice(proof):
    import pyarrow as pa

    def places(*found):
        return pa.table({"partition": [p for p, _ in found], "offset": [o for _, o in found]})

    proof.once(places((0, 0), (0, 2), (1, 0)), places((0, 1)), {0: 3, 1: 1})
    with pytest.raises(proof.DemoFailed, match="flights-0, offset 2 is nowhere"):
        proof.once(places((0, 0), (1, 0)), places((0, 1)), {0: 3, 1: 1})
    with pytest.raises(proof.DemoFailed, match="flights-0, offset 1 is there 2 times"):
        proof.once(places((0, 0), (0, 1)), places((0, 1)), {0: 2})


def test_every_planted_record_is_bad_in_a_way_that_the_pipeline_finds(proof):
    import pyarrow as pa

    import load
    from millstream.pipeline.checks import decoder_of
    from millstream.pipeline.document import load as load_pipeline

    source = load_pipeline(FLIGHTS / "flights.yaml").pipeline.source
    flights = load.rows(*load.read_tables(load.BAD_EVERY * 3)["flights"])
    values = [value for _, value in load.with_bad_records(flights)]
    errors = decoder_of(source).decode(pa.array(values, pa.binary())).errors.to_pylist()
    bad = {index: error for index, error in enumerate(errors) if error is not None}
    assert list(bad) == [load.BAD_EVERY * (n + 1) + n for n in range(3)]
    assert ["dep_delay" in bad[5000], "carrier" in bad[10001], "truncated" in bad[15002]] == [True] * 3


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_the_demo_runs_is_killed_and_proves_that_nothing_was_lost(tmp_path):
    command = [sys.executable, str(FLIGHTS / "run.py"), "--flights", "120000", "--data", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "kill -9 at" in done.stdout
    assert "120,000 rows + 24 dead letters = 120,024: none missing, none twice" in done.stdout
    assert (tmp_path / "demo" / "delays.png").stat().st_size > 10_000
