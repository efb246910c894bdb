"""The figures of the page on sizing are those of the page on performance, and its formulas use them."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SIZING = (DOCS / "sizing.md").read_text()


def measured():
    """Figures of the last benchmark of one shard, by load and figure."""
    found, load = {}, ""
    for line in (DOCS / "performance.md").read_text().partition("<!-- end of figures -->")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) >= 6:
            load = cells[0] or load
            found[load, cells[1]] = cells[2]
    return found


def figures():
    table = SIZING.partition("## Figures")[2].partition("## CPU")[0]
    return re.findall(r"^\| (.+?) \| (.+?) \| ([\d.]+) \|$", table, re.MULTILINE)


def test_each_figure_is_the_measured_one():
    known = measured()
    assert len(figures()) == 7
    for load, figure, value in figures():
        assert known[load, figure] == value, f"{load}: {figure}"


def test_the_formulas_use_the_figures_rounded():
    values = {(load, figure): float(value) for load, figure, value in figures()}
    (waits,) = (value for (load, _), value in values.items() if load.startswith("produce 1 KB, 1 000 connections"))
    (bulk,) = (value for (load, _), value in values.items() if load.startswith("produce batches"))
    (fetch,) = (value for (load, _), value in values.items() if load.startswith("fetch 128 KiB"))
    (tail,) = (value for (_, figure), value in values.items() if figure.endswith("delivered to a group"))
    formula = re.search(r"cores of a broker = .*", SIZING)[0]
    assert f"R × {waits:.0f} µs + B ÷ {bulk:g} GB" in formula
    assert f"R × G × {tail:.0f} µs + B × G ÷ {fetch:.1f} GB" in formula


def test_the_examples_are_what_the_formulas_give():
    r, b, f, n, g, t = 1_250, 20e6, 3, 3, 2, 604_800

    def cores(requests):
        return ((requests * 23e-6 + b / 1.18e9) * f + requests * g * 10e-6 + b * g / 2.6e9) / n * 2

    assert f"= {cores(r):.2f} cores" in SIZING
    assert f"= {cores(20_000):.1f} cores" in SIZING
    assert f"= {0.35 * 2**31 / (b * f / n):.0f} s" in SIZING
    space = b * t * f / n * 1.15 + 2 * 2**28 + 2**28
    assert f"= {space / 1e12:.1f} TB" in SIZING
    assert f"{(b * (f - 1) + b * g) / n / 1e6:.0f} MB/s out" in SIZING
    assert f"{b * 86_400 / 2**30:,.0f} segments a day" in SIZING
