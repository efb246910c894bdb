"""What a query to Prometheus may ask of a broker."""

import re

from millstream.telemetry.table import ASKED, METRICS, NAMED, Kind

FROM_PROMETHEUS = {"job": None, "instance": None}
"""Labels that Prometheus adds to everything it scrapes."""


def samples():
    """Every name that a page can hold → (labels with their values, whether it only grows)."""
    known = {}
    for metric in (*METRICS, *ASKED, *NAMED):
        labels = {"shard": None} if metric.per_shard else {}
        if metric.label is not None:
            labels |= dict.fromkeys(metric.label.name.split(", "), metric.label.values or None)
        name = metric.exposed_name
        if metric.kind is Kind.HISTOGRAM:
            known[f"{name}_bucket"] = ({**labels, "le": None}, True)
            known[f"{name}_count"] = known[f"{name}_sum"] = (labels, True)
        else:
            known[name] = (labels, metric.kind is Kind.COUNTER)
    return known


def check_query(query):
    """Fail unless each metric, label and value of a query exists, and what only grows is asked for its growth."""
    known = samples()
    asked = re.findall(r"(rate|increase)?\(?(millstream_\w+)(?:\{([^}]*)\})?", query)
    assert asked, query
    by = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
    for function, name, matchers in asked:
        assert name in known, f"no broker shows {name}"
        labels, grows = known[name]
        assert bool(function) == grows, f"{name} {'only' if grows else 'does not only'} grow"
        labels = {**FROM_PROMETHEUS, **labels}
        assert by <= labels.keys(), f"{name} has no label of {by - labels.keys()}"
        for label, operator, wanted in re.findall(r'(\w+)(=|!=|=~|!~)"([^"]*)"', matchers):
            values = wanted.split("|") if operator in ("=~", "!~") else [wanted]
            assert labels[label] is None or set(values) <= set(labels[label]), f"{name} never has {label}={wanted}"
    if "histogram_quantile" in query:
        assert "le" in by
        assert all(name.endswith("_bucket") for _, name, _ in asked)
