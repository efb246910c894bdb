"""The settings that docs/start.md shows. Its commands run in ``test_documented_pages``."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def examples(page, language):
    """(heading, code) of every fenced block of one language."""
    heading = ""
    found = []
    for block in re.finditer(
        r"^## ([^\n]+)$|^```(\w+)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL
    ):
        if block[1]:
            heading = block[1]
        elif block[2] == language:
            found.append((heading, block[3]))
    return found


def test_the_settings_of_the_start_page_are_accepted(tmp_path):
    from millstream.config import load_settings

    file = tmp_path / "broker.properties"
    [(_, properties)] = examples("start.md", "properties")
    file.write_text(properties)
    assert load_settings(str(file)).memory_bytes == 2**30
