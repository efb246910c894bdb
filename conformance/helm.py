"""Helm itself, from the Go module proxy, for ``make test-helm``: ``python -m conformance.helm`` prints where it is.

The tests render the chart with a renderer of their own, which needs nothing; where Helm is on the path they have it
lint the chart and render the same values, and compare. It is built once per machine.
"""

import sys
from pathlib import Path

from conformance import tools

MODULE = "helm.sh/helm/v3/cmd/helm"
VERSION = "3.19.0"
FOLDER = f"helm-{VERSION}"


def build(folder: Path) -> None:
    """Compiles the program."""
    tools.run(["go", "install", f"{MODULE}@v{VERSION}"], folder, {"GOBIN": str(folder), "GOFLAGS": "-p=2"})


def main() -> None:
    """Prints where the program is, also where it cannot be built: an empty entry of PATH is the current directory."""
    try:
        tools.need("go")
        tools.cached(FOLDER, build)
    except tools.SuiteUnavailable as reason:
        print(f"without Helm: {reason}", file=sys.stderr)
    print(tools.CACHE / FOLDER)


if __name__ == "__main__":
    main()
