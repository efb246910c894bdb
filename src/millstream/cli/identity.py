"""As whom a command speaks to brokers: TLS and login from a file, from ``-X`` and from a profile.

The options stand beside ``--bootstrap``. Later ones win: the profile, ``--command-config FILE``, ``-X NAME=VALUE``. A
profile is a file of Kafka's client properties with ``bootstrap.servers``, of mode 0600, in
``$XDG_CONFIG_HOME/millstream/profiles`` (``~/.config/…``); ``current`` beside the profiles names the one that is used
where no ``--profile`` is given. A command with an address of its own and no ``--profile`` uses none: the password of a
profile is for the brokers of that profile.

Bad input: a missing or unreadable file, a name that is not a security property of clients, a profile that others may
read: one sentence, before anything is sent.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.config.properties_file import read_properties_file, write_properties
from millstream.errors import Rejected

if TYPE_CHECKING:
    from millstream.client.security import Security

BOOTSTRAP: Final = "bootstrap.servers"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class _Current:
    """The properties of the command that runs. One a process."""

    def __init__(self) -> None:
        self.gather: Callable[[], dict[str, str]] = dict

    @property
    def properties(self) -> dict[str, str]:
        found = self.gather()
        self.gather = lambda: found
        return found


_current: Final = _Current()


def use(gather: Callable[[], dict[str, str]]) -> None:
    """Let the command that runs connect with the properties that ``gather`` returns; it is called when it connects."""
    _current.gather = gather


def bootstrap() -> str | None:
    """The address among the properties of the command that runs."""
    return _current.properties.get(BOOTSTRAP)


def properties() -> dict[str, str]:
    """The properties of the command that runs, but for the address; references not resolved."""
    return {name: value for name, value in _current.properties.items() if name != BOOTSTRAP}


def brokers_properties() -> dict[str, str]:
    """Those that are not a schema registry's."""
    from millstream.client.schema_registry import is_registry_name

    return {name: value for name, value in properties().items() if not is_registry_name(name)}


def security() -> Security:
    """TLS and login of the command that runs."""
    from millstream.client.security import PLAIN, read_security

    found = _current.properties
    if not found:
        return PLAIN
    try:
        return read_security(found)
    except Rejected as error:
        raise WrongUsage(error.message) from None


def librdkafka() -> dict[str, Any]:
    """The same for clients of confluent-kafka."""
    if not _current.properties:
        return {}
    from millstream.client.security import to_librdkafka

    try:
        return to_librdkafka(security())
    except Rejected as error:
        raise WrongUsage(error.message) from None


def gathered(profile: str | None, file: str | None, pairs: tuple[str, ...], *, has_address: bool) -> dict[str, str]:
    """The properties of the options, as the module says which win."""
    name = profile or (None if has_address else current_profile())
    found = read_profile(name) if name else {}
    if file is not None:
        found |= {name: value for _, name, value in read_properties_file(file)}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise WrongUsage(f"-X: {pair.partition('=')[0]!r} is not valid, expected NAME=VALUE")
        found[name.strip()] = value
    return found


# Profiles


def profiles_directory() -> Path:
    """Where profiles are kept."""
    own = os.environ.get("XDG_CONFIG_HOME") or os.path.join(_home(), ".config")
    return Path(own) / "millstream" / "profiles"


def _home() -> str:
    """The user's directory; ``/`` as for a daemon, where neither the environment nor the system knows one."""
    found = os.path.expanduser("~")
    return "/" if found == "~" else found


def profile_names() -> list[str]:
    """All profiles, sorted."""
    return sorted(path.stem for path in profiles_directory().glob("*.properties"))


def current_profile() -> str | None:
    """The profile that is used where none is named."""
    name = os.environ.get("MILLSTREAM_PROFILE")
    if name:
        return name
    try:
        return (profiles_directory() / "current").read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def profile_path(name: str) -> Path:
    """The file of a profile."""
    if _NAME.fullmatch(name) is None:
        raise WrongUsage(f"{name!r} is no name of a profile, expected letters, digits, '-', '_' and '.'")
    return profiles_directory() / f"{name}.properties"


def read_profile(name: str) -> dict[str, str]:
    """The properties of a profile. A file that others may read is refused."""
    path = profile_path(name)
    try:
        mode = path.stat().st_mode
    except OSError:
        known = ", ".join(profile_names()) or "none"
        raise CommandFailed(f"there is no profile {name!r} (there are: {known}); 'millstream profile create'") from None
    if stat.S_IMODE(mode) & 0o077:
        raise CommandFailed(f"{path} can be read by others, and may have a password; run: chmod 600 {path}")
    return {name: value for _, name, value in read_properties_file(str(path))}


def write_profile(name: str, found: Mapping[str, str]) -> Path:
    """Write a profile, whole or not at all, that only its owner can read."""
    path = profile_path(name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(write_properties(found))
    temporary.replace(path)
    return path


def use_profile(name: str) -> None:
    """Make a profile the one that is used where none is named."""
    read_profile(name)
    (profiles_directory() / "current").write_text(f"{name}\n", encoding="utf-8")
