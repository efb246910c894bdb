"""Key material for tests: one authority, and what it has signed, as files."""

import functools
from pathlib import Path

from millstream.secure.authority import issue, make_authority

HOSTS = ("localhost", "127.0.0.1")


@functools.cache
def authority(name="Test authority"):
    return make_authority(name)


def write(directory, name, *, hosts=(), by="Test authority"):
    """``name.pem`` with key and certificate, ``ca.pem`` beside it; the path of the first."""
    directory = Path(directory)
    pair = issue(authority(by), name, hosts)
    path = directory / f"{name}.pem"
    path.write_bytes(pair.key + pair.certificate)
    (directory / "ca.pem").write_bytes(authority(by).certificate)
    return path
