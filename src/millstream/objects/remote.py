"""S3, Google Cloud Storage and Azure Blob Storage, through obstore's synchronous API.

The library makes one attempt a call; ``Retrying`` decides on the rest, so that one budget and one limit hold for all
stores. Its asynchronous API is not used: a process that ends while that runs may crash at its exit.

A conditional ``put`` is one request with If-None-Match or If-Match, which the store decides atomically. ``put_stream``
is a multipart upload; the library cancels it after an error. Errors are translated in ``objects.remote_errors``.

**Credentials that are renewed.** Before each call the files that hold credentials are checked, and a file that has
changed makes another client. One that is half written, or has no keys now, leaves the client as it is, and is read
again by the next call. A call that is denied while the file changes is repeated once.

This module needs the extra ``millstream[objects]``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from millstream.errors import MillstreamError
from millstream.model.quantities import TimestampMs
from millstream.objects.credentials import aws_settings, files, signature
from millstream.objects.errors import Denied, ShortRead
from millstream.objects.remote_errors import changing, is_missing_bucket, reading
from millstream.objects.store import (
    ObjectInfo,
    ObjectKey,
    Version,
    check_folder,
    check_key,
    check_range,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from millstream.model.quantities import FilePosition
    from millstream.objects.store import Buffer
    from millstream.objects.url import StoreUrl

PART_BYTES: Final = 8 << 20
"""Bytes of one part of a multipart upload: 10,000 parts, S3's limit, are 80 GB."""

_PARTS_AT_ONCE: Final = 4
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_REQUEST_TIMEOUT: Final = timedelta(seconds=30)
_NO_RETRIES: Final = {"max_retries": 0, "retry_timeout": _REQUEST_TIMEOUT}

_Result = TypeVar("_Result")

_AZURE_ACCOUNT: Final = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR", "AZURE_STORAGE_CONNECTION_STRING")


class RemoteStore:
    """A bucket or container, or a prefix in one. Makes no request before its first call."""

    def __init__(self, url: StoreUrl) -> None:
        self.url = str(url)
        self._parsed = url
        self._counts = url.scheme == "gs"
        self._files = files(url.scheme, os.environ)
        self._seen = signature(self._files)
        with reading(self.url, "the store could not be opened"):
            self._settings, self._store = _client(url)

    def _client(self) -> Any:
        """The client with the newest credentials."""
        seen = signature(self._files)
        if seen != self._seen:
            try:
                settings, store = _client(self._parsed)
            except (MillstreamError, exceptions.BaseError, OSError, ValueError):
                return self._store  # half written
            if self._settings.keys() - settings.keys():
                return self._store
            self._settings, self._store, self._seen = settings, store, seen
        return self._store

    def _ask(self, work: Callable[[Any], _Result]) -> _Result:
        """Call the library; once more if that is denied and there are other credentials by now."""
        client = self._client()
        try:
            return work(client)
        except Exception:
            if (newer := self._client()) is client:
                raise
            return work(newer)

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        check_key(key)
        mode: Any = "overwrite" if expect is None else "create"
        if expect:
            mode = {"version" if self._counts else "e_tag": str(expect)}
        with changing(self.url, f"{key} could not be written"):
            whole = parts[0] if len(parts) == 1 else b"".join(parts)
            result = self._ask(lambda client: obstore.put(client, key, whole, mode=mode, use_multipart=False))
        return self._version(result)

    def put_stream(self, key: ObjectKey, parts: Iterable[Buffer]) -> Version:
        check_key(key)
        raised: list[BaseException] = []
        with changing(self.url, f"{key} could not be written"):
            try:
                result = obstore.put(
                    self._client(),
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
        return self._version(result)

    def _version(self, found: Any) -> Version:
        """Google compares the generation of an object, the others compare its entity tag."""
        return Version((self._counts and found.get("version")) or found["e_tag"] or "")

    def get(self, key: ObjectKey, start: FilePosition, end: FilePosition) -> memoryview:
        check_key(key)
        check_range(key, start, end)
        with reading(self.url, f"{key} could not be read"):
            data = memoryview(self._ask(lambda client: obstore.get_range(client, key, start=start, end=end)))
        if len(data) < end - start:
            raise ShortRead(f"{self.url}: the object {key} returned {len(data)} bytes of the range {start}–{end}")
        return data

    def head(self, key: ObjectKey) -> ObjectInfo | None:
        check_key(key)
        with reading(self.url, f"{key} could not be examined"):
            try:
                return self._info(self._ask(lambda client: obstore.head(client, key)))
            except FileNotFoundError as error:
                if is_missing_bucket(error):
                    raise
                return None

    def list(self, folder: str = "", after: str = "") -> Iterator[ObjectInfo]:
        check_folder(folder)
        with reading(self.url, f"{folder or 'the store'} could not be listed"):
            for page in obstore.list(self._client(), prefix=folder.rstrip("/") or None, offset=after or None):
                for meta in page:
                    yield self._info(meta)

    def delete(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            check_key(key)
        with changing(self.url, "objects could not be removed"):
            try:
                self._ask(lambda client: obstore.delete(client, list(keys)))
            except FileNotFoundError:  # on Azure, an object that is missing already stops the request
                for key in keys:
                    self._delete_one(key)

    def _delete_one(self, key: ObjectKey) -> None:
        try:
            self._ask(lambda client: obstore.delete(client, key))
        except FileNotFoundError as error:
            if is_missing_bucket(error):
                raise

    def _info(self, meta: Any) -> ObjectInfo:
        modified_ms = TimestampMs(int(meta["last_modified"].timestamp() * 1000))
        return ObjectInfo(ObjectKey(meta["path"]), meta["size"], self._version(meta), modified_ms)

    def close(self) -> None:
        """The library closes its connections with the store."""


def _client(url: StoreUrl) -> tuple[dict[str, str], Any]:
    """The settings from files, and the client."""
    prefix = url.path or None
    options: Any = {"timeout": _REQUEST_TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT}
    common: dict[str, Any] = {"prefix": prefix, "retry_config": _NO_RETRIES}
    if url.scheme == "s3":
        settings = aws_settings(os.environ)
        config: Any = settings
        if settings.get("endpoint", "").startswith("http://"):
            options["allow_http"] = True
        return settings, S3Store(url.bucket, config=config, client_options=options, **common)
    if url.scheme == "gs":
        return {}, GCSStore(url.bucket, client_options=options, **common)
    if not any(os.environ.get(name) for name in _AZURE_ACCOUNT):
        raise Denied(f"{url}: the store could not be opened: set {_AZURE_ACCOUNT[0]} in the environment of the broker")
    if os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true"):
        options["allow_http"] = True
    return {}, AzureStore(url.bucket, client_options=options, **common)


def _remembering(parts: Iterable[Buffer], raised: list[BaseException]) -> Iterator[bytes]:
    """The parts as the library wants them. It replaces an exception of the iterator, so that is kept here."""
    try:
        for part in parts:
            yield bytes(part)
    except BaseException as error:
        raised.append(error)
        raise
