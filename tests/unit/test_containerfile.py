"""The container's recipe names files and flags that exist."""

import json
import re
from pathlib import Path

import yaml

from millstream.cli.start import start_parser
from millstream.config.exposure import check_exposure
from millstream.config.load import load_settings

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "Containerfile").read_text()


def test_it_copies_what_is_there():
    copied = [
        word for words in re.findall(r"^COPY (?!--from)(.+) \S+$", RECIPE, re.MULTILINE) for word in words.split()
    ]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_its_command_is_one_that_start_takes():
    command = json.loads(re.search(r"^CMD (.+)$", RECIPE, re.MULTILINE)[1])
    assert command[0] == "start"
    given = start_parser().parse_args(command[1:])
    (source,) = re.findall(r"^COPY (\S+broker\.properties) (?=/opt/millstream/$)", RECIPE, re.MULTILINE)
    assert given.config == f"/opt/millstream/{Path(source).name}"
    settings = load_settings(str(ROOT / source))
    check_exposure(settings)
    changed = load_settings(str(ROOT / source), variables={"MILLSTREAM_ADVERTISED_LISTENERS": "broker-1:9092"})
    assert changed.advertised_listeners[0].host == "broker-1", "a variable wins over the image's file"
    assert settings.listen[0].port == 9092
    assert settings.http_listen.port == 9644
    assert f"VOLUME {settings.data_dir}\n" in RECIPE
    assert "EXPOSE 9092 9644\n" in RECIPE


def test_volumes_begin_as_directories_of_the_user_alone():
    """A named volume takes owner and mode of what the image has in its place; a missing directory would be root's."""
    made = re.search(r"install -d -m 0700 -o millstream -g millstream (.+)$", RECIPE, re.MULTILINE)[1].split()
    compose = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text())
    brokers = [one for name, one in compose["services"].items() if name.startswith("broker")]
    mounted = {volume.split(":")[1] for one in brokers for volume in one["volumes"] if not volume.startswith("./")}
    assert mounted
    assert mounted <= set(made)
    assert re.search(r"^USER 10001$", RECIPE, re.MULTILINE)
