"""The register of file formats says what the code does."""

import re
from pathlib import Path

import pytest

from millstream.format import epochs, producers, wal
from millstream.format.wal import FILE_VERSION, FILE_VERSIONS, STATE_VERSION
from millstream.wire.batch import MAGIC

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "formats.md").read_text().splitlines()
    if line.startswith("| `")
]


@pytest.mark.parametrize(
    ("file", "writes", "reads"),
    [
        (".wal", FILE_VERSION, FILE_VERSIONS),
        ("state.copy", STATE_VERSION, [STATE_VERSION]),
        (".log", MAGIC, [MAGIC]),
        (".producers", producers.VERSION, [producers.VERSION]),
        ("epochs", epochs.VERSION, epochs.VERSIONS),
    ],
)
def test_the_register_has_the_versions_of_the_code(file: str, writes: int, reads: list[int]) -> None:
    (row,) = [one for one in ROWS if file in one[0] and len(one) == 6]
    assert (row[2], row[3]) == (str(writes), ", ".join(map(str, reads)))


def test_owners_and_tests_of_the_register_exist() -> None:
    for row in ROWS:
        if len(row) != 6:
            continue
        module = re.fullmatch(r"`(millstream[\w.]+)`", row[4])
        assert module is not None, row
        assert (ROOT / "src" / (module[1].replace(".", "/") + ".py")).exists(), row
        if row[5] != "–":
            assert (ROOT / row[5].strip("`")).exists(), row


def test_every_version_but_the_first_is_explained() -> None:
    changed = {(row[0], row[1]) for row in ROWS if len(row) == 3}
    assert ("`epochs`", str(epochs.VERSION)) in changed
    assert wal.FILE_VERSION == 3
