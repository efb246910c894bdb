"""The alerts ask only for what a broker shows, and the page for operators explains each of them."""

import re
from pathlib import Path

import pytest
import yaml
from exposed_samples import check_query

ROOT = Path(__file__).parents[3]
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "millstream.rules.yml").read_text())["groups"]
    for rule in group["rules"]
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_metrics_labels_and_values_that_exist(rule):
    if rule["alert"] == "MillstreamDown":
        assert rule["expr"] == 'up{job="millstream"} == 0'
    else:
        check_query(rule["expr"])
    kept = set(re.findall(r"by \(([^)]*)\)", rule["expr"])[-1].split(", ")) if "by (" in rule["expr"] else None
    for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
        assert kept is None or label in kept, f"the summary names {label}, which the query drops"


def test_every_alert_is_explained_to_the_operator():
    explained = re.findall(r"^\| `(Millstream\w+)` \|", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(rule["alert"] for rule in RULES)
