"""The pages about tables of others and about S3, pasted block by block."""

import pytest

pytest.importorskip("deltalake")

from pathlib import Path

from tests import buckets

from tools import docs_check

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1800)]

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_a_newcomer_can_paste_the_page_about_s3(monkeypatch, tmp_path):
    with buckets.moto() as url:
        for name, value in buckets.environment(url, tmp_path).items():
            monkeypatch.setenv(name, value)
        assert docs_check.check([DOCS / "object-stores.md"], slow=True) == []


def test_a_newcomer_can_paste_the_page_about_tables_that_exist():
    assert docs_check.check([DOCS / "existing-tables.md"], slow=True) == []
