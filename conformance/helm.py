"""Helm itself, from the Go module proxy, for the tests of the chart: ``python -m conformance.helm`` prints where it is.

The tests render the chart with a renderer of their own, which needs nothing; where Helm is on the path they have it
lint the chart and render the same values, and compare. It is built once per machine.
"""

import sys
from pathlib import Path

from conformance import tools

MODULE = "helm.sh/helm/v3/cmd/helm"
VERSION = "3.19.0"


def build(folder: Path) -> None:
    """Compiles the program."""
    tools.run(["go", "install", f"{MODULE}@v{VERSION}"], folder, {"GOBIN": str(folder), "GOFLAGS": "-p=2"})


def main() -> int:
    """Prints where the program is; nothing, and 1, where it cannot be built."""
    try:
        tools.need("go")
        print(tools.cached(f"helm-{VERSION}", build))
    except tools.SuiteUnavailable as reason:
        print(f"without Helm: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
