"""Iceberg tables of a pipeline in a REST catalog: each row once, also if the answer to a commit is lost."""

import pytest

pytest.importorskip("deltalake")

from spark_support import BAD_EVERY

from millstream.pipeline.model import Sink
from millstream.pipeline.runner import run

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]


def good(orders):
    return [number for number in range(orders.good + orders.bad) if number % BAD_EVERY]


def test_a_rest_catalog_has_each_row_once_even_if_the_answer_to_a_commit_is_lost(spark, orders, tmp_path):
    from pyiceberg.catalog import load_catalog
    from rest_catalog import RestCatalog

    with RestCatalog(tmp_path / "catalog") as served:
        names = {"type": "rest", "uri": served.url}
        pipeline = orders.send(1000).pipeline(Sink(iceberg="ns.t", catalog=names))
        served.lose = 2  # of the claim, and of the first batch
        done = run(pipeline, str(tmp_path), once=True).sinks[0]
        assert served.lose == 0
        assert done.total_rows == orders.good
        run(orders.send(100).pipeline(Sink(iceberg="ns.t", catalog=names)), str(tmp_path), once=True)
        catalog = load_catalog("c", **names)
        rows = catalog.load_table("ns.t").scan().to_arrow()
        assert sorted(rows["id"].to_pylist()) == good(orders)
        assert catalog.load_table("ns.t_dead_letters").scan().to_arrow().num_rows == orders.bad
