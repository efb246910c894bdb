"""The lines about the machine that a broker logs when it starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from millstream.tune.checks import look
from millstream.tune.facts import Broker, Facts
from millstream.tune.finding import Outcome

if TYPE_CHECKING:
    from millstream.config.settings import Settings

NAMED_MAX: Final = 4
"""Settings that the line names."""


def start_line(settings: Settings, root: str = os.sep) -> str:
    """One line: which settings of the machine are off. Advice is not counted. Empty if none is."""
    findings = look(Facts(root, Broker.here(settings)))
    wrong = [one.name for one in findings if one.seen.outcome is Outcome.OFF and not one.advice]
    if not wrong:
        return ""
    named = ", ".join(wrong[:NAMED_MAX])
    more = f" and {len(wrong) - NAMED_MAX} more" if len(wrong) > NAMED_MAX else ""
    return f"this machine could serve a broker better: {named}{more}; 'millstream tune' says why and how"
