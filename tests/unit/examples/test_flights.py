"""The demo reads its data set on every version of Python, with setuptools or without."""

import json
import subprocess
import sys
from pathlib import Path

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
