"""The container's recipe names files and flags that exist."""

import json
import re
from pathlib import Path

from millstream.cli.start import start_parser
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
    settings = load_settings(
        None, given.set, {"data_dir": given.data, "listen": given.listen[0], "http_listen": given.http}
    )
    assert settings.listen[0].port == 9092
    assert settings.http_listen.port == 9644
    assert f"VOLUME {settings.data_dir}\n" in RECIPE
    assert "EXPOSE 9092 9644\n" in RECIPE
