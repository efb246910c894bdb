"""Credentials for remote stores, from where the tools of each cloud look for them.

The client library reads the environment (``AWS_ACCESS_KEY_ID``, ``GOOGLE_APPLICATION_CREDENTIALS``,
``AZURE_STORAGE_ACCOUNT_KEY``, …), Google's application default credentials, web identity tokens, and the metadata
services of virtual machines and containers. It does not read Amazon's shared files, so this module does: the profile
``AWS_PROFILE`` (or ``default``) of ``~/.aws/credentials`` and ``~/.aws/config`` gives keys and region, unless the
environment has keys. A profile that needs a login or another program is refused with the command that helps.

Keys in a file may be temporary: a sidecar or a command writes others before they expire. `files` names the files that a
client has read when it was made, and `Signature` tells whether one has changed, so that another client is made then.
The library itself reads again what is exchanged for keys: web identity tokens, the token of a container, metadata
services, Azure's federated token.
"""

from __future__ import annotations

import configparser
import os
from typing import TYPE_CHECKING, Final, TypeAlias

from millstream.objects.errors import Denied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Signature: TypeAlias = tuple[tuple[int, int, int] | None, ...]
"""Of some files: inode, size and time of the last change of each; None for one that is not there."""

_KEYS: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_INDIRECT: Final = ("sso_session", "sso_start_url", "credential_process", "role_arn", "login_session")
_GOOGLE_FILES: Final = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
)
_OTHER_SOURCES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def aws_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Client settings (``access_key_id``, ``secret_access_key``, ``session_token``, ``region``, ``endpoint``) that the
    client library does not find by itself. Raises Denied for a profile that is missing or needs a login.
    """
    home = environment.get("HOME") or os.path.expanduser("~")
    profile = environment.get("AWS_PROFILE", "default")
    named = "AWS_PROFILE" in environment
    secrets = _section(_credentials_file(environment, home), profile)
    section = profile if profile == "default" else f"profile {profile}"
    config = _section(_config_file(environment, home), section)
    merged = {**config, **secrets}
    if named and not merged:
        raise Denied(
            f"the AWS profile {profile!r} of AWS_PROFILE is neither in ~/.aws/credentials nor in ~/.aws/config"
        )
    settings = {name: environment[variable] for name, variable in _endpoint_variables(environment).items()}
    if "region" in merged and not ({"AWS_REGION", "AWS_DEFAULT_REGION"} & environment.keys()):
        settings["region"] = merged["region"]
    if any(variable in environment for variable in _OTHER_SOURCES):
        return settings
    if "aws_access_key_id" in merged and "aws_secret_access_key" in merged:
        settings.update({ours: merged[theirs] for theirs, ours in _KEYS.items() if theirs in merged})
    elif indirect := [name for name in _INDIRECT if name in merged]:
        raise Denied(
            f"the AWS profile {profile!r} needs {indirect[0]}, which a broker cannot use. Run: "
            f'eval "$(aws configure export-credentials --profile {profile} --format env)"'
        )
    return settings


def files(scheme: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The files from which a client of this scheme has its keys, whether they are there or not."""
    home = environment.get("HOME") or os.path.expanduser("~")
    if scheme == "s3":
        return _credentials_file(environment, home), _config_file(environment, home)
    if scheme == "gs":
        named = [environment[name] for name in _GOOGLE_FILES if environment.get(name)]
        return (*named, f"{home}/.config/gcloud/application_default_credentials.json")
    return ()


def signature(paths: Sequence[str]) -> Signature:
    """What changes when one of the files is written or replaced."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            one = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((one.st_ino, one.st_size, one.st_mtime_ns))
    return tuple(found)


def _credentials_file(environment: Mapping[str, str], home: str) -> str:
    return environment.get("AWS_SHARED_CREDENTIALS_FILE", f"{home}/.aws/credentials")


def _config_file(environment: Mapping[str, str], home: str) -> str:
    return environment.get("AWS_CONFIG_FILE", f"{home}/.aws/config")


def _endpoint_variables(environment: Mapping[str, str]) -> dict[str, str]:
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if environment.get(variable):
            return {"endpoint": variable}
    return {}


def _section(path: str, name: str) -> dict[str, str]:
    """One section of an INI file; empty without one."""
    parser = configparser.ConfigParser(interpolation=None, default_section="\0")
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise Denied(f"{path} could not be read: {str(error).splitlines()[0]}") from error
    return dict(parser[name]) if parser.has_section(name) else {}
