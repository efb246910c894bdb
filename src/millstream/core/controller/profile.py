"""What a broker says about itself when it registers: stored in the controller's log and sent in requests.

Bounds are checked before anything is decided (``profile_problem``): a profile is kept in the log for ever and sent to
every broker. The ``array_like`` addresses and the profile may get further fields with a default.
"""

from typing import Final

import msgspec

from millstream.model.cluster import FeatureLevel

NAME_LENGTH_MAX: Final = 255
"""Characters of a listener's name, a host, a rack or a release."""

LISTENERS_MAX: Final = 64
SHARDS_MAX: Final = 256
PORT_MAX: Final = 65_535


class ListenerAddress(msgspec.Struct, frozen=True, array_like=True):
    """The address that clients of one listener connect to."""

    name: str
    host: str
    port: int


class PeerAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where other brokers connect."""

    host: str
    port: int


class BrokerProfile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A broker's addresses, place and abilities.

    ``shards`` is the number of cores that serve partitions, ``release`` the version for people to read,
    ``feature_level`` the highest level that the broker knows. An empty ``rack`` is unknown.
    """

    listeners: tuple[ListenerAddress, ...]
    peer: PeerAddress
    rack: str
    shards: int
    release: str
    feature_level: FeatureLevel
    log_in_store: bool = False
    """A broker that registers says that its acknowledgements of shared topics wait for the object store
    (``shared.wal=object``). In the controller's state: the store has everything that it acknowledged of the shared
    partitions that it has alone (`commands.BrokerLogsInStore`).
    """


def profile_problem(profile: BrokerProfile) -> str | None:
    """Why a broker cannot register with ``profile``; None if it can."""
    if not 1 <= len(profile.listeners) <= LISTENERS_MAX:
        return f"has {len(profile.listeners)} listeners, expected 1 to {LISTENERS_MAX}"
    if len({each.name for each in profile.listeners}) != len(profile.listeners):
        return "gives two listeners the same name"
    if not 1 <= profile.shards <= SHARDS_MAX:
        return f"has {profile.shards} shards, expected 1 to {SHARDS_MAX}"
    ports = [profile.peer.port, *(each.port for each in profile.listeners)]
    if not all(1 <= port <= PORT_MAX for port in ports):
        return f"names a port outside 1 to {PORT_MAX}"
    hosts = [profile.peer.host, *(each.host for each in profile.listeners)]
    names = [*hosts, *(each.name for each in profile.listeners), profile.rack, profile.release]
    if any(len(name) > NAME_LENGTH_MAX for name in names):
        return f"has a name of more than {NAME_LENGTH_MAX} characters"
    if not all(hosts):
        return "has an address without a host"
    return None
