"""How a store is opened. Everything but a directory needs the extra ``millstream[objects]``; the error says so."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from millstream.errors import Rejected, how_to_install
from millstream.objects.local import LocalStore
from millstream.objects.retrying import PATIENCE_S, Retrying
from millstream.objects.url import parse_url

if TYPE_CHECKING:
    from millstream.objects.store import ObjectStore
    from millstream.objects.url import StoreUrl


def check_store(text: str) -> None:
    """Raises Rejected, with the remedy, if `open_store` would: the URL is wrong, or a package is missing."""
    url = parse_url(text)
    if url.scheme != "file" and find_spec("obstore") is None:
        raise _lacks_package(url)


def open_store(text: str, patience_s: float = PATIENCE_S) -> ObjectStore:
    """The store of a URL, with retries and limits; a call fails after ``patience_s``.

    Opening makes no request to a remote store. A directory is created if it is missing.

    Raises:
        Rejected: the URL is wrong, or the extra ``millstream[objects]`` is not installed.
        Unavailable, Denied: the directory cannot be used.
    """
    url = parse_url(text)
    if url.scheme == "file":
        return Retrying(LocalStore(url.path), patience_s)
    try:
        from millstream.objects.remote import RemoteStore
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise _lacks_package(url) from None
    return Retrying(RemoteStore(url), patience_s)


def _lacks_package(url: StoreUrl) -> Rejected:
    return Rejected(f"the object store {url} needs one more package: {how_to_install('objects')}, then start again")
