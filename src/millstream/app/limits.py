"""Live settings of the supervisor, reported by one shard when they change.

The supervisor accepts connections and has no metadata of its own. At start it takes these settings from the
controller's loaded state; a change arrives over the control channel of the controller's shard. A lost change (the
supervisor does not answer) takes effect at the next start.
"""

from typing import Any, Final

import msgspec

from millstream.app.address_limits import connection_limits
from millstream.cluster.metadata import MetadataCache, MetadataListener, Steps
from millstream.config.settings import Settings
from millstream.shard.control import ControlEnd

CONNECTION_LIMITS: Final = "connection_limits"
_TIMEOUT_US: Final = 10_000_000


class TellSupervisor(MetadataListener):
    """Reports changed settings to the supervisor. One per broker, on the controller's shard."""

    def __init__(self, control: ControlEnd, metadata: MetadataCache) -> None:
        self._control = control
        self._metadata = metadata

    def settings_changed(self, settings: Settings) -> Steps:
        limits = connection_limits(settings, self._metadata.state.security.limits)
        self._control.ask(CONNECTION_LIMITS, msgspec.to_builtins(limits), _heard, _TIMEOUT_US)
        return None

    def quotas_changed(self) -> Steps:
        return self.settings_changed(self._metadata.settings)


def _heard(answer: Any) -> None:
    """Ignore the supervisor's confirmation."""
    _ = answer
