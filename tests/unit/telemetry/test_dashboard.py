"""The Grafana dashboard asks only for what a broker shows."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.telemetry.table import ASKED, METRICS, Kind

ROOT = Path(__file__).parents[3]


def samples():
    """Every name that a page can hold → (labels with their values, whether it only grows)."""
    known = {}
    for metric in (*METRICS, *ASKED):
        labels = {"shard": None} if metric.per_shard else {}
        if metric.label is not None:
            labels[metric.label.name] = metric.label.values or None
        name = metric.exposed_name
        if metric.kind is Kind.HISTOGRAM:
            known[f"{name}_bucket"] = ({**labels, "le": None}, True)
            known[f"{name}_count"] = known[f"{name}_sum"] = (labels, True)
        else:
            known[name] = (labels, metric.kind is Kind.COUNTER)
    return known


def panels():
    document = json.loads((ROOT / "deploy" / "grafana" / "millstream.json").read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


QUERIES = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_a_query_asks_for_metrics_labels_and_values_that_exist(title, query):
    known = samples()
    asked = re.findall(r"(rate|increase)?\(?(millstream_\w+)\{([^}]*)\}", query)
    assert asked, query
    by = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
    for function, name, matchers in asked:
        assert name in known, f"no broker shows {name}"
        labels, grows = known[name]
        assert bool(function) == grows, f"{name} {'only' if grows else 'does not only'} grow"
        assert by <= labels.keys(), f"{name} has no label of {by - labels.keys()}"
        for label, value in re.findall(r'(\w+)(?:=|!=|=~|!~)"([^"]*)"', matchers):
            if label in ("job", "instance"):
                continue
            assert value in (labels[label] or (value,)), f"{name} never has {label}={value}"
    if "histogram_quantile" in query:
        assert "le" in by
        assert all(name.endswith("_bucket") for _, name, _ in asked)


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
