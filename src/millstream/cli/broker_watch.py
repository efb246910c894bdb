"""Whether the broker answers: reports on stderr, once each, that it stopped answering and that it is back."""

from __future__ import annotations

from millstream.cli.output import remark


class BrokerWatch:
    """Reports the changes. ``gone`` is what was reported last."""

    def __init__(self, bootstrap: str) -> None:
        self.gone = False
        self._bootstrap = bootstrap

    def report(self, *, there: bool) -> None:
        """Print a line if this is another state than the one reported last."""
        if there and self.gone:
            remark(f"a broker answers at {self._bootstrap} again")
        elif not there and not self.gone:
            remark(f"no broker answers at {self._bootstrap}; waiting until one does, Ctrl-C ends this")
        self.gone = not there
