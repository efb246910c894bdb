"""The pages with blocks that are slow, most of them for Spark, pasted block by block."""

import re
from pathlib import Path

import pytest

pytest.importorskip("deltalake")

from tests import buckets

from tools import docs_check

pytestmark = [pytest.mark.spark, pytest.mark.process]

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "a data engineer's first half hour": ["README", "spark", "tables", "existing-tables"],
    "the second one": ["schema-changes", "upserts", "object-stores"],
    "pipelines": ["pipeline"],
    "events": ["start", "events"],
}
"""Pages that are pasted into one directory and one broker, in this order."""
MAKES = re.compile(r"topic create ((?:[a-zA-Z][\w.-]* ?)+)(?!.*--if-not-exists)")


def page(name):
    return ROOT / "README.md" if name == "README" else ROOT / "docs" / f"{name}.md"


def test_pages_that_are_read_after_each_other_make_topics_of_their_own():
    """Of one broker, as the navigation has them: a page that finds another's records shows other rows than it says."""
    use = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("  - Use:")[2].partition("  - Operate:")[0]
    names = ["README", "start", "clients", *re.findall(r": ([\w-]+)\.md", use)]
    made = {}
    for name in names:
        for block in docs_check.blocks_of(page(name)):
            for words in MAKES.findall(block.code) if not block.mark.startswith("skip") else ():
                for topic in words.split():
                    made.setdefault(topic, set()).add(name)
    assert {"invoices", "purchases", "shipments"} <= made.keys()
    assert {topic: pages for topic, pages in made.items() if len(pages) > 1} == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("names", PAGES.values(), ids=PAGES)
def test_a_newcomer_can_paste_pages_with_their_slow_blocks(monkeypatch, tmp_path, names):
    with buckets.moto() as url:
        for name, value in buckets.environment(url, tmp_path).items():
            monkeypatch.setenv(name, value)
        assert docs_check.check([page(name) for name in names], slow=True) == []


def test_no_slow_block_is_on_a_page_that_nobody_pastes():
    slow = {
        path.stem
        for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        if any(block.mark.startswith("slow") for block in docs_check.blocks_of(path))
    }
    assert slow <= {name for names in PAGES.values() for name in names}
