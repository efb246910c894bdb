"""Records the numbered steps of the produce and fetch paths that a live request passes.

Installed in a shard through the hidden setting ``internal.shard.hook``. It finds every function whose docstring starts
with ``Produce n/8`` or ``Fetch n/8``, and uses the interpreter's profile hook to append a line per call to the file in
the environment variable: the path, the number and the function. A test compares the lines with ARCHITECTURE.md.
"""

import inspect
import os
import re
import sys
from types import CodeType, FrameType

TRACE_FILE_VARIABLE = "MILLSTREAM_TRACE_FILE"

_STOP = re.compile(r"(Produce|Fetch) (\d)/8")


def stops() -> dict[CodeType, list[tuple[str, int, str]]]:
    """Every numbered function of the imported package: code → (path, number, dotted name without the package)."""
    found: dict[CodeType, list[tuple[str, int, str]]] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith("millstream."):
            continue
        owners: list[object] = [module, *(c for _, c in inspect.getmembers(module, inspect.isclass))]
        for owner in owners:
            for _, function in inspect.getmembers(owner, inspect.isfunction):
                if function.__module__ != name:
                    continue
                opening = (function.__doc__ or "").split(".")[0]
                where = f"{name.removeprefix('millstream.')}.{function.__qualname__}"
                numbered = [(path, int(number), where) for path, number in _STOP.findall(opening)]
                if numbered:
                    found[function.__code__] = numbered
    return found


def install(node: object) -> None:
    """Start tracing in this process."""
    _ = node
    numbered = stops()
    out = os.open(os.environ[TRACE_FILE_VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        _ = argument
        if event == "call" and frame.f_code in numbered:
            for path, number, where in numbered[frame.f_code]:
                os.write(out, f"{path} {number} {where}\n".encode())

    sys.setprofile(on_event)
