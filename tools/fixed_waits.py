"""Waits of tests that count on the speed of the machine, found in their syntax.

On a busy machine a broker needs ten times as long for what it always does. A test that sleeps until "it is over by
now", that gives a bound of seconds, or that asserts how long something took, fails there without a fault. Tests wait
for a condition instead (``tests/waits.py``), and measure work, not time (``tests/worked.py``).

Refused in tests: ``time.sleep``, a clock, or a time measured by one, that has to be early in an assertion, a bound
between one second and a minute (two for a command), a limit of pytest below five minutes, and a deadline of hypothesis.
CPU time (``thread_time``, ``process_time``) is no clock here, and a bound below a second is a pause between two looks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sources import per_file, tree_of

CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
BOUNDS = {"timeout", "timeout_s", "patience_s", "limit_s", "request_timeout", "seconds"}
WAITING = {"result", "flush", "settimeout", "communicate", "wait", "join", "poll"}
COMMANDS = {"run", "communicate", "check_output", "check_call"}
"""Of a process that has yet to start Python, which alone takes a busy machine half a minute."""
BOUND_NAME = re.compile(r"(PATIENCE|TIMEOUT|DEADLINE|WAIT|LIMIT|ANSWER)(_\w+)?_S$")
LEAST_S = 60
LEAST_COMMAND_S = 120
LEAST_TEST_S = 300
EXEMPT = ("tests/waits.py",)


class Wait(NamedTuple):
    """One place that counts on speed."""

    line: int
    what: str


@per_file
def fixed_waits(path: Path) -> list[Wait]:
    """What in a file of tests counts on the speed of the machine."""
    found: list[Wait] = []
    tree = tree_of(path)
    measured = _measured(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += _call(node)
        elif isinstance(node, ast.Assert) and _is_to_be_early(node.test, measured):
            found.append(Wait(node.lineno, "asserts a time of the clock; wait for a condition, or measure work"))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and _is_clock(node.left):
            if _is_short(node.right):
                found.append(Wait(node.lineno, f"ends a wait in less than {LEAST_S} s"))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found += _constant(node)
    return sorted(found)


def _call(call: ast.Call) -> Iterator[Wait]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "sleep" and ast.unparse(call.func) == "time.sleep":
        yield Wait(call.lineno, "sleeps; use until() or moment() of tests/waits.py")
    if name == "timeout" and call.args and _number(call.args[0], LEAST_TEST_S):
        yield Wait(call.lineno, f"ends a test in less than {LEAST_TEST_S} s")
    if name in WAITING and _is_of_a_thing(call.func) and len(call.args) == 1 and _is_short(call.args[0]):
        yield Wait(call.lineno, f"{name}() waits for less than {LEAST_S} s")
    for given in call.keywords:
        if given.arg in BOUNDS and _is_short(given.value):
            yield Wait(call.lineno, f"{given.arg} is less than {LEAST_S} s")
        elif given.arg == "timeout" and name in COMMANDS and _number(given.value, LEAST_COMMAND_S):
            yield Wait(call.lineno, f"a command has less than {LEAST_COMMAND_S} s")
        is_none = isinstance(given.value, ast.Constant) and given.value.value is None
        if given.arg == "deadline" and name in ("settings", "register_profile") and not is_none:
            yield Wait(call.lineno, "has a deadline of hypothesis")


def _is_of_a_thing(verb: ast.expr) -> bool:
    """Whether it is a verb of a thread, a process or an answer: brokers join the controller of a bench, too."""
    return isinstance(verb, ast.Attribute) and not ast.unparse(verb.value).endswith("bench")


def _constant(node: ast.Assign | ast.AnnAssign) -> Iterator[Wait]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        if isinstance(target, ast.Name) and BOUND_NAME.search(target.id) and node.value and _is_short(node.value):
            yield Wait(node.lineno, f"{target.id} is less than {LEAST_S} s")


def _measured(tree: ast.AST) -> frozenset[str]:
    """Names of times that a clock has measured."""
    return frozenset(
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Sub)
        if _has_clock(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def _is_to_be_early(test: ast.expr, measured: frozenset[str]) -> bool:
    """Whether an assertion holds only if a clock has not come far."""
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        for smaller, operator, larger in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(operator, ast.Lt | ast.LtE) and _has_clock(smaller, measured):
                return True
            if isinstance(operator, ast.Gt | ast.GtE) and _has_clock(larger, measured):
                return True
    return False


def _has_clock(node: ast.expr, measured: frozenset[str] = frozenset()) -> bool:
    return any(_is_clock(part) or (isinstance(part, ast.Name) and part.id in measured) for part in ast.walk(node))


def _is_clock(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "time"
        and node.func.attr in CLOCKS
    )


def _is_short(node: ast.expr) -> bool:
    return _number(node, LEAST_S)


def _number(node: ast.expr, limit: float) -> bool:
    """A literal between one second and the limit."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and 1 < node.value < limit
