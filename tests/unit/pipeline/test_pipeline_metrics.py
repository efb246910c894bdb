"""A pipeline's figures over HTTP: every declared one, as the sinks have it now."""

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from millstream.errors import Unavailable
from millstream.pipeline.checks import problems_of
from millstream.pipeline.metrics import METRICS, PREFIX, served
from millstream.pipeline.model import Pipeline, Sink, Source
from millstream.pipeline.sink_figures import BatchDone
from millstream.pipeline.sink_query import NoWatch, SinkQuery, SinkRun
from millstream.pipeline.state import SinkState

PIPELINE = Pipeline(pipeline="p", source=Source(topic="orders"), sinks=[Sink(delta="t", name="s")])


@pytest.fixture
def sink(tmp_path):
    state = SinkState(str(tmp_path / "s"))
    given = SinkRun(pipeline=PIPELINE, index=0, directory=str(tmp_path), state=state, run_id="run")
    return SinkQuery(given, NoWatch())


def scrape(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    return dict(re.findall(r'^(\w+)\{pipeline="p",sink="s"\} (\S+)$', text, re.MULTILINE))


def test_a_scrape_has_every_figure_as_it_is_now(sink):
    with served("127.0.0.1:0", "p", [sink]) as url:
        before = scrape(url)
        assert PREFIX + "last_batch_seconds" not in before
        assert before[PREFIX + "rows_total"] == "0"
        sink.figures.total_rows, sink.position.backlog, sink.position.read = 1_234_567_890_123, 10, 4
        sink.figures.done_at = 1.5
        sink.figures.done = BatchDone(number=1, read=4, rows=3, rejected=1, seconds=0.25, repeated=False, version="1")
        found = scrape(url)
        assert set(found) == {PREFIX + metric.name for metric in METRICS}
        assert found[PREFIX + "rows_total"] == "1234567890123"
        assert (found[PREFIX + "offsets_left"], found[PREFIX + "last_batch_seconds"]) == ("6", "0.25")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.removesuffix("metrics"), timeout=60)
        with pytest.raises(Unavailable, match="cannot listen"), served(url.split("/")[2], "p", [sink]):
            pass
    with pytest.raises(urllib.error.URLError):
        scrape(url)


def test_the_guide_shows_every_figure():
    guide = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    rows = [line for line in guide.splitlines() if line.startswith(f"| `{PREFIX}")]
    assert rows == [f"| `{PREFIX}{metric.name}` | {metric.kind} | {metric.doc} |" for metric in METRICS]


def test_an_address_that_is_none_is_refused():
    import msgspec

    (problem,) = problems_of(msgspec.structs.replace(PIPELINE, metrics="everywhere"))
    assert "no address such as" in problem.message
    assert problems_of(msgspec.structs.replace(PIPELINE, metrics="[::1]:0")) == []
