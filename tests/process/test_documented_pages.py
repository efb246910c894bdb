"""The pages that a newcomer reads first, pasted block by block into one broker, one page after the other."""

from pathlib import Path

import pytest

from tools import docs_check

ROOT = Path(__file__).resolve().parents[2]
FIRST = [
    "README.md",
    "docs/start.md",
    "docs/clients.md",
    "docs/transactions.md",
    "docs/queues.md",
    "docs/events.md",
    "docs/apply.md",
    "docs/backup.md",
]
OWN = [
    f"docs/{name}.md"
    for name in (
        "schemas",
        "tables",
        "pipeline",
        "existing-tables",
        "schema-changes",
        "upserts",
        "object-stores",
        "spark",
        "administration",
        "console",
        "tune",
    )
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.timeout(1800)
def test_the_first_pages_can_be_pasted_in_their_order():
    assert docs_check.check([ROOT / page for page in FIRST], slow=False) == []


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("page", OWN)
def test_a_page_of_its_own_can_be_pasted_but_for_what_needs_spark(page):
    assert docs_check.check([ROOT / page], slow=False) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_block_of_a_page_has_prompts_or_an_unknown_mark(page):
    assert [block.where for block in docs_check.blocks_of(page) if docs_check.faults(block)] == []


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(docs_check, "ROOT", tmp_path)
    monkeypatch.setattr(docs_check, "START", "#!/bin/bash\necho started\n")

    def write(text, *, slow=False):
        path = tmp_path / "page.md"
        path.write_text(text)
        return docs_check.check([path], slow=slow)

    return write


def test_what_cannot_be_pasted_is_found(page):
    assert page("```bash\ntrue\n```\n") == []
    assert "exit code 3" in page("```bash\nexit 3\n```\n")[0]
    assert "NameError" in page("```python\nprint(array)\n```\n")[0]
    assert page("```\nx\n```\n") == ["page.md:1: the block does not say its language"]
    assert "prompts" in page("```console\n$ ls\n```\n")[0]
    assert "prompts" in page("text\n\n```bash\n$ ls\n```\n")[0]
    assert "neither 'slow' nor" in page("<!-- docs-check: skip -->\n```bash\nfalse\n```\n")[0]
    assert page("<!-- docs-check: skip: needs a cloud -->\n```bash\nfalse\n```\n") == []
    assert page("<!-- docs-check: slow -->\n```bash\nfalse\n```\n") == []


def test_blocks_share_a_directory_and_what_a_shell_exports(page):
    text = "```bash\nexport WORD=kept\necho 1 > file\n```\n\n    ```bash\n    test $WORD = kept\n    ```\n"
    assert page(text + "```python\nassert open('file').read() == '1\\n'\n```\n") == []
    assert "exit code 1" in page("```bash\ntest -e file\n```\n")[0], "each check begins in an empty directory"


def test_a_python_block_may_continue_the_one_before_it(page):
    text = "<!-- docs-check: slow -->\n```python\none = 1\n```\n\n```bash\ntrue\n```\n\n"
    text += "<!-- docs-check: slow, continues -->\n```python\nassert one == 1\n```\n"
    assert page(text, slow=True) == page(text) == []
    assert "AssertionError" in page(text.replace("== 1", "== 2"), slow=True)[0]
