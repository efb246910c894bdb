"""URLs of object stores.

==============================  ========================================================================
``file:///var/lib/bucket``      a directory; an absolute path without ``file:`` is taken as it is
``s3://bucket/prefix``          Amazon S3, or a compatible server with ``AWS_ENDPOINT_URL``
``gs://bucket/prefix``          Google Cloud Storage
``az://container/prefix``       Azure Blob Storage of the account ``AZURE_STORAGE_ACCOUNT_NAME``
==============================  ========================================================================

A URL holds no credentials: they come from the environment (``objects.credentials``).
"""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from millstream.errors import Rejected
from millstream.objects.store import check_key

SCHEMES: Final = ("file", "s3", "gs", "az")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_FORMS: Final = "file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"


class StoreUrl(msgspec.Struct, frozen=True):
    """A checked URL."""

    scheme: str
    """One of ``SCHEMES``."""

    bucket: str
    """Bucket or container; empty for a directory."""

    path: str
    """Absolute directory, or prefix of all keys without slashes at its ends."""

    def __str__(self) -> str:
        if not self.bucket:
            return directory_url(self.path)
        return f"{self.scheme}://{self.bucket}" + (f"/{self.path}" if self.path else "")


def directory_url(path: str) -> str:
    """The URL of an absolute directory, whose name may have any characters."""
    return f"file://{quote(os.fsencode(path))}"


def parse_url(text: str) -> StoreUrl:
    """Check a URL. Raises Rejected with what is wrong and what is expected."""
    try:
        url = urlsplit(directory_url(text) if text.startswith("/") else text)
        user = url.username
    except ValueError as error:
        raise Rejected(f"the object store URL {text!r} is no URL ({error}); expected {_FORMS}") from None
    if user is not None:
        raise Rejected("an object store URL holds no credentials; set them in the environment of the broker")
    if url.scheme not in SCHEMES or url.query or url.fragment:
        raise Rejected(f"the object store URL {text!r} is not of a known form; expected {_FORMS}")
    if url.scheme == "file":
        directory = os.path.normpath(unquote(url.path, errors="surrogateescape"))
        if url.netloc not in ("", "localhost") or not url.path.startswith("/") or directory.strip("/") == "":
            raise Rejected(f"the object store URL {text!r} names no absolute directory; expected file:///DIRECTORY")
        return StoreUrl("file", "", "/" + directory.lstrip("/"))
    if not _BUCKET.fullmatch(url.netloc):
        raise Rejected(f"the object store URL {text!r} names no valid bucket; expected {_FORMS}")
    prefix = unquote(url.path).strip("/")
    if prefix:
        check_key(prefix)
    return StoreUrl(url.scheme, url.netloc, prefix)
