"""The Grafana dashboard asks only for what a broker shows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from exposed_samples import check_query

ROOT = Path(__file__).parents[3]


def panels():
    document = json.loads((ROOT / "deploy" / "grafana" / "millstream.json").read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


QUERIES = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_a_query_asks_for_metrics_labels_and_values_that_exist(title, query):
    assert title
    check_query(query)


def test_panels_do_not_overlap_and_stay_on_the_page():
    taken = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + 8)}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_file_is_what_the_list_of_panels_makes():
    done = subprocess.run([sys.executable, ROOT / "tools" / "dashboard.py", "--check"], check=False)
    assert done.returncode == 0
