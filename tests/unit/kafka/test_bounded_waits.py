"""No request waits for as long as its client says: each time that a request names is bounded where it is used."""

import ast
from pathlib import Path

import pytest

from millstream.kafka import handlers
from millstream.kafka.timeouts import TIMEOUT_MAX_MS, bounded_ms

TIMES = {"timeout_ms", "max_wait_ms"}
BOUNDS = {"bounded_ms", "min"}
PASSED_ON = {
    "events/push_events.py": "to the produce that bounds it",
    "data/fetch_at_once.py": "nothing waits there",
}
ZERO_OR_NOT = (ast.Compare, ast.BoolOp, ast.IfExp)
"""Questions about a time, not waits."""


def unbounded(source):
    """Lines that use a time of a request in no call that bounds it."""
    found = []

    def walk(node, is_bounded):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BOUNDS:
            is_bounded = True
        if isinstance(node, ast.Attribute) and node.attr in TIMES and not is_bounded:
            owner = node.value
            if (owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")) == "request":
                found.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            walk(child, is_bounded or isinstance(node, ZERO_OR_NOT))

    walk(ast.parse(source), False)
    return found


def files():
    root = Path(handlers.__file__).parent
    return {str(path.relative_to(root)): path for path in sorted(root.rglob("*.py"))}


def test_every_time_of_a_request_is_bounded():
    found = {name: lines for name, path in files().items() if (lines := unbounded(path.read_text()))}
    assert found.keys() <= PASSED_ON.keys(), found


def test_the_look_finds_what_it_should():
    assert unbounded("call(request.timeout_ms)") == [1]
    assert unbounded("call(bounded_ms(request.timeout_ms))") == []


@pytest.mark.parametrize(("said", "used"), [(-1, -1), (0, 0), (30_000, 30_000), (2**31 - 1, TIMEOUT_MAX_MS)])
def test_the_longest_wait(said, used):
    assert bounded_ms(said) == used
