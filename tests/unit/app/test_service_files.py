"""What is handed to systemd fits the broker."""

import configparser
import re
from pathlib import Path

from millstream.cli.__main__ import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from millstream.config.load import load_settings
from millstream.shard import process
from millstream.tune.applying import unit

SYSTEMD = Path(__file__).parents[3] / "deploy" / "systemd"
OPERATIONS = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()


def service():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(SYSTEMD / "millstream.service")
    return unit["Service"]


def settings():
    return load_settings(str(SYSTEMD / "broker.properties"), [], {})


def test_the_settings_are_accepted_and_live_where_the_unit_may_write():
    found = settings()
    assert found.data_dir == f"/var/lib/{service()['StateDirectory']}"
    assert found.http_listen is not None, "Prometheus needs to know the port"


def test_the_broker_is_given_the_time_that_it_may_take_to_stop():
    assert int(service()["TimeoutStopSec"].removesuffix("s")) * 1000 > settings().shutdown_timeout_ms


def test_a_wrong_setting_is_not_tried_again():
    assert str(EXIT_USAGE) in service()["RestartPreventExitStatus"].split()


def test_every_exit_code_is_explained():
    codes = {value for name, value in vars(process).items() if name.startswith("EXIT_") and isinstance(value, int)}
    table = OPERATIONS.partition("| Exit code |")[2].partition("\n\n")[0]
    explained = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in row.split(",")}
    assert explained == codes | {EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED}


def test_the_unit_for_the_machine_is_the_one_that_tune_writes():
    kept = (SYSTEMD / "millstream-tune.service").read_text()
    assert kept == unit("/opt/millstream/bin/millstream", advice=False)
