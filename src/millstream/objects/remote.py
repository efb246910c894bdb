"""S3, Google Cloud Storage and Azure Blob Storage, through obstore's synchronous API.

The library makes one attempt a call; ``Retrying`` decides on the rest, so that one budget and one limit hold for all
stores. Its asynchronous API is not used: a process that ends while that runs may crash at its exit.

A conditional ``put`` is one request with If-None-Match or If-Match, which the store decides atomically. ``put_stream``
is a multipart upload; the library cancels it after an error. Errors are translated in ``objects.remote_errors``.

This module needs the extra ``millstream[objects]``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from millstream.model.quantities import TimestampMs
from millstream.objects.credentials import aws_settings
from millstream.objects.errors import Denied, ShortRead
from millstream.objects.remote_errors import changing, is_missing_bucket, reading
from millstream.objects.store import (
    ABSENT,
    ObjectInfo,
    ObjectKey,
    Version,
    check_folder,
    check_key,
    check_range,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from millstream.model.quantities import FilePosition
    from millstream.objects.store import Buffer
    from millstream.objects.url import StoreUrl

PART_BYTES: Final = 8 << 20
"""Bytes of one part of a multipart upload: 10,000 parts, S3's limit, are 80 GB."""

_PARTS_AT_ONCE: Final = 4
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_REQUEST_TIMEOUT: Final = timedelta(seconds=30)
_NO_RETRIES: Final = {"max_retries": 0, "retry_timeout": _REQUEST_TIMEOUT}

_AZURE_ACCOUNT: Final = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR", "AZURE_STORAGE_CONNECTION_STRING")


class RemoteStore:
    """A bucket or container, or a prefix in one. Makes no request before its first call."""

    def __init__(self, url: StoreUrl) -> None:
        self.url = str(url)
        with reading(self.url, "the store could not be opened"):
            self._store = _client(url)

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        check_key(key)
        mode: Any = "overwrite" if expect is None else "create" if expect == ABSENT else {"e_tag": str(expect)}
        with changing(self.url, f"{key} could not be written"):
            whole = parts[0] if len(parts) == 1 else b"".join(parts)
            result = obstore.put(self._store, key, whole, mode=mode, use_multipart=False)
        return Version(result["e_tag"] or "")

    def put_stream(self, key: ObjectKey, parts: Iterable[Buffer]) -> Version:
        check_key(key)
        raised: list[BaseException] = []
        with changing(self.url, f"{key} could not be written"):
            try:
                result = obstore.put(
                    self._store,
                    key,
                    _remembering(parts, raised),
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )
            except BaseException:
                if raised:
                    raise raised[0] from None
                raise
        return Version(result["e_tag"] or "")

    def get(self, key: ObjectKey, start: FilePosition, end: FilePosition) -> memoryview:
        check_key(key)
        check_range(key, start, end)
        with reading(self.url, f"{key} could not be read"):
            data = memoryview(obstore.get_range(self._store, key, start=start, end=end))
        if len(data) < end - start:
            raise ShortRead(f"{self.url}: the object {key} returned {len(data)} bytes of the range {start}–{end}")
        return data

    def head(self, key: ObjectKey) -> ObjectInfo | None:
        check_key(key)
        with reading(self.url, f"{key} could not be examined"):
            try:
                return _info(obstore.head(self._store, key))
            except FileNotFoundError as error:
                if is_missing_bucket(error):
                    raise
                return None

    def list(self, folder: str = "", after: str = "") -> Iterator[ObjectInfo]:
        check_folder(folder)
        with reading(self.url, f"{folder or 'the store'} could not be listed"):
            for page in obstore.list(self._store, prefix=folder.rstrip("/") or None, offset=after or None):
                for meta in page:
                    yield _info(meta)

    def delete(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            check_key(key)
        with changing(self.url, "objects could not be removed"):
            try:
                obstore.delete(self._store, list(keys))
            except FileNotFoundError:  # on Azure, an object that is missing already stops the request
                for key in keys:
                    self._delete_one(key)

    def _delete_one(self, key: ObjectKey) -> None:
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError as error:
            if is_missing_bucket(error):
                raise

    def close(self) -> None:
        """The library closes its connections with the store."""


def _client(url: StoreUrl) -> Any:
    prefix = url.path or None
    options: Any = {"timeout": _REQUEST_TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT}
    common: dict[str, Any] = {"prefix": prefix, "retry_config": _NO_RETRIES}
    if url.scheme == "s3":
        settings: Any = aws_settings(os.environ)
        if settings.get("endpoint", "").startswith("http://"):
            options["allow_http"] = True
        return S3Store(url.bucket, config=settings, client_options=options, **common)
    if url.scheme == "gs":
        return GCSStore(url.bucket, client_options=options, **common)
    if not any(os.environ.get(name) for name in _AZURE_ACCOUNT):
        raise Denied(f"{url}: the store could not be opened: set {_AZURE_ACCOUNT[0]} in the environment of the broker")
    if os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true"):
        options["allow_http"] = True
    return AzureStore(url.bucket, client_options=options, **common)


def _info(meta: Any) -> ObjectInfo:
    modified_ms = TimestampMs(int(meta["last_modified"].timestamp() * 1000))
    return ObjectInfo(ObjectKey(meta["path"]), meta["size"], Version(meta["e_tag"] or ""), modified_ms)


def _remembering(parts: Iterable[Buffer], raised: list[BaseException]) -> Iterator[bytes]:
    """The parts as the library wants them. It replaces an exception of the iterator, so that is kept here."""
    try:
        for part in parts:
            yield bytes(part)
    except BaseException as error:
        raised.append(error)
        raise
