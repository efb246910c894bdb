"""The accounts of clients that change topics, at the controller that decides (KIP-599).

They are forgotten when another controller decides, or this one starts again: clients start with full buckets.
"""

from collections.abc import Callable

from millstream.config.settings import Settings
from millstream.core.controller.state import ControllerState
from millstream.core.quota.mutations import MutationClient, MutationQuotas, Spender

SpenderOf = Callable[[MutationClient | None], Spender]


def spender_of(settings: Settings, state: ControllerState, now_us: Callable[[], int]) -> SpenderOf:
    """The function that finds a client's account, by the quotas of ``state``."""
    quotas = MutationQuotas(settings.controller_quota_window_num * settings.controller_quota_window_size_seconds)
    return lambda client: quotas.spender(client, state.security.limits, now_us())
