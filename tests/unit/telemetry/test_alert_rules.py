"""The alerts ask only for what a broker shows, and the page for operators explains each of them."""

import re
import shutil
import subprocess
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


DRILLS = Path(__file__).parent / "alert_drills.yml"


def test_every_alert_leads_to_its_explanation():
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert']}"


def test_every_alert_has_a_drill():
    drills = yaml.safe_load(DRILLS.read_text())["tests"]
    fires = [one["alertname"] for drill in drills for one in drill["alert_rule_test"] if one["exp_alerts"]]
    assert sorted(fires) == sorted(rule["alert"] for rule in RULES)
    quiet = {one["alertname"] for drill in drills for one in drill["alert_rule_test"] if not one["exp_alerts"]}
    assert quiet == {rule["alert"] for rule in RULES}, "a broker that is well must not fire any"


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_promtool_takes_the_rules():
    rules = ROOT / "deploy" / "prometheus" / "millstream.rules.yml"
    done = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True)
    assert (done.returncode, "rules found" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_every_drill_fires_its_alert_and_a_broker_that_is_well_fires_none():
    done = subprocess.run(["promtool", "test", "rules", DRILLS.name], cwd=DRILLS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_explained_to_the_operator():
    explained = re.findall(
        r'^\| <a id="(Millstream\w+)"></a>`\1` \|', (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE
    )
    assert sorted(explained) == sorted(rule["alert"] for rule in RULES)
