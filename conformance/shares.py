"""Settings of a broker for suites of share groups."""

from typing import Final

SHARE_GROUPS: Final = {"internal.share.groups": "true"}
