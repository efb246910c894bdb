"""Rights of requests to the schema registry: each of its routes, odd subjects, other spellings of paths."""

import pytest

from millstream.admin.routing import Request
from millstream.app.registry_rights import registry_needs, schema_id_of
from millstream.model.access import Operation, ResourceType
from millstream.registry.rest import ROUTES

DESCRIBE, READ, WRITE, DELETE, ALTER = (
    Operation.DESCRIBE,
    Operation.READ,
    Operation.WRITE,
    Operation.DELETE,
    Operation.ALTER,
)


def needs(method, target):
    return [(each.operation, each.name) for each in registry_needs(Request(method, "", target))]


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/subjects/orders-value/versions", (DESCRIBE, "orders")),
        ("GET", "/subjects/orders-value/versions/latest?deleted=true", (DESCRIBE, "orders")),
        ("POST", "/subjects/orders-key", (DESCRIBE, "orders")),
        ("POST", "/subjects/orders-key/?normalize=true", (DESCRIBE, "orders")),
        ("POST", "/subjects/orders-value/versions", (WRITE, "orders")),
        ("DELETE", "/subjects/orders-value", (DELETE, "orders")),
        ("DELETE", "/subjects/orders-value/versions/1", (DELETE, "orders")),
        ("POST", "/compatibility/subjects/orders-value/versions", (DESCRIBE, "orders")),
        ("GET", "/subjects/a%2Fb-value/versions", (DESCRIBE, "a/b")),
        ("GET", "/subjects/a+b-value/versions", (DESCRIBE, "a b")),
        ("GET", "/subjects/com.example.Order/versions", (READ, "_schemas")),
        ("POST", "/subjects/com.example.Order/versions", (ALTER, "_schemas")),
        ("DELETE", "/subjects/com.example.Order", (ALTER, "_schemas")),
        ("GET", "/subjects/:.other:orders-value/versions", (READ, "_schemas")),
        ("GET", "/subjects/-value/versions", (READ, "_schemas")),
        ("GET", "/subjects", (READ, "_schemas")),
        ("GET", "/schemas", (READ, "_schemas")),
        ("GET", "/schemas/guids/abc", (READ, "_schemas")),
        ("GET", "/schemas/ids/%31", (READ, "_schemas")),
        ("GET", "/contexts", (READ, "_schemas")),
        ("GET", "/config/orders-value", (READ, "_schemas")),
        ("PUT", "/config/orders-value", (ALTER, "_schemas")),
        ("PUT", "/config", (ALTER, "_schemas")),
        ("DELETE", "/mode/orders-value", (ALTER, "_schemas")),
        ("GET", "/nothing/of/this", (READ, "_schemas")),
        ("GET", "/", (READ, "_schemas")),
        ("GET", "//", (READ, "_schemas")),
        ("POST", "/?subject=x", (ALTER, "_schemas")),
        ("GET", "//subjects//orders-value/", (DESCRIBE, "orders")),
        ("POST", "//subjects//orders-value", (WRITE, "orders")),
        ("GET", "/subjects/", (READ, "_schemas")),
        ("GET", "/subjects/%20", (READ, "_schemas")),
    ],
)
def test_what_a_request_needs(method, target, expected):
    assert needs(method, target) == [expected]
    assert all(each.resource is ResourceType.TOPIC for each in registry_needs(Request(method, "", target)))


@pytest.mark.parametrize("target", ["/schemas/types", "/master_available"])
def test_what_needs_nothing(target):
    assert needs("GET", target) == []
    assert needs("PUT", target) == [(ALTER, "_schemas")]


@pytest.mark.parametrize("end", ["", "/schema", "/subjects", "/versions"])
def test_a_schema_by_id_is_decided_by_its_subjects(end):
    assert schema_id_of(f"/schemas/ids/17{end}") == "17"
    assert needs("GET", f"/schemas/ids/17{end}?subject=x") == []


def test_every_route_of_the_registry_that_changes_something_needs_more_than_reading():
    changes = 0
    for method, pattern, _ in ROUTES:
        target = pattern.pattern.replace("(?P<subject>[^/]+)", "orders-value")
        target = target.replace("(?P<version>[^/]+)", "1").replace("(?P<id>[^/]+)", "1").replace("(?P<guid>[^/]+)", "a")
        found = {operation for operation, _ in needs(method, target)}
        looks = method == "GET" or "compatibility" in target or target == "/subjects/orders-value"
        if not looks or method == "DELETE":
            assert found & {WRITE, DELETE, ALTER}, (method, target)
            changes += 1
    assert changes >= 10
