"""Live settings that hold in the supervisor: one shard tells it when they change.

The supervisor accepts connections and has no metadata of its own. What it starts with comes from the loaded state of
the controller; a change comes over the control channel of the controller's shard. A change that is lost (the supervisor
does not answer) comes with the next start.
"""

from typing import Any, Final

from millstream.cluster.metadata import MetadataListener, Steps
from millstream.config.settings import Settings
from millstream.shard.control import ControlEnd

CONNECTIONS_MAX: Final = "connections_max"
_TIMEOUT_US: Final = 10_000_000


class TellSupervisor(MetadataListener):
    """See the module. One per broker, on the controller's shard."""

    def __init__(self, control: ControlEnd) -> None:
        self._control = control

    def settings_changed(self, settings: Settings) -> Steps:
        self._control.ask(CONNECTIONS_MAX, settings.connections_max, _heard, _TIMEOUT_US)
        return None


def _heard(answer: Any) -> None:
    """The supervisor knows."""
    _ = answer
