"""Plants a bug in this process, for simulations: functions are others for a while, and production code knows nothing.

Bugs that a whole broker starts with are in `planted`.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable


@contextmanager
def planted(replaced: Iterable[tuple[object, str, Any]]) -> Generator[None]:
    """Replace attributes: ``replaced`` has the owner of each, its name, and what stands there instead."""
    with ExitStack() as stack:
        for owner, attribute, replacement in replaced:
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield
