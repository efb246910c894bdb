"""Live settings of the supervisor, reported by one shard when they change.

The supervisor accepts connections and has no metadata of its own. At start it takes these settings from the
controller's loaded state; a change arrives over the control channel of the controller's shard. A lost change (the
supervisor does not answer) takes effect at the next start.
"""

from typing import Any, Final

from millstream.cluster.metadata import MetadataListener, Steps
from millstream.config.settings import Settings
from millstream.shard.control import ControlEnd

CONNECTIONS_MAX: Final = "connections_max"
_TIMEOUT_US: Final = 10_000_000


class TellSupervisor(MetadataListener):
    """Reports changed settings to the supervisor. One per broker, on the controller's shard."""

    def __init__(self, control: ControlEnd) -> None:
        self._control = control

    def settings_changed(self, settings: Settings) -> Steps:
        self._control.ask(CONNECTIONS_MAX, settings.connections_max, _heard, _TIMEOUT_US)
        return None


def _heard(answer: Any) -> None:
    """Ignore the supervisor's confirmation."""
    _ = answer
