"""Bundles that are asked for over HTTP (``admin.bundle``): gathered by a thread, one at a time.

The file is in the data directory and has no name there, so nothing of it is left behind, also after a kill of the
broker. It takes as much as the metrics of its minutes do, compressed: some megabytes. The log is not in it, because a
broker writes it to standard error and does not have it.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Final

import msgspec

from millstream.admin.bundle import GZIP, SUFFIX, Bundle, Parts, host, json_file, utc
from millstream.admin.routing import HttpError, Response
from millstream.telemetry.log import log

_SAMPLE_S: Final = 15.0
_PIECE_BYTES: Final = 256 << 10


class Bundles:
    """The newest bundle of this broker. Any thread."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self._lock = threading.Lock()
        self._state = Bundle("none")
        self._file: BinaryIO | None = None
        """Belongs to the thread that gathers; read by others when the state is ``ready``."""
        self._ending = threading.Event()

    def state(self) -> Bundle:
        """What is being gathered, or was last."""
        return self._state

    def begin(
        self, minutes: float, documents: Mapping[str, Callable[[], Any]], metrics: Callable[[], bytes], bootstrap: str
    ) -> Bundle:
        """Gather the documents, and samples of the metrics for some minutes; unless a bundle is being gathered.

        Raises:
            OSError: the data directory takes no file.
        """
        with self._lock:
            if self._state.state == "gathering":
                return self._state
            began = time.time()
            name = time.strftime(f"millstream-bundle-%Y%m%d-%H%M%S{SUFFIX}", time.gmtime(began))
            file = tempfile.TemporaryFile(dir=self._data_dir)  # noqa: SIM115 (kept until the next one starts)
            if self._file is not None:
                self._file.close()  # who downloads it has a descriptor of its own
            self._file = file
            self._state = Bundle("gathering", name, utc(began))
            threading.Thread(
                target=self._gather,
                args=(self._file, minutes * 60, documents, metrics, bootstrap),
                name="bundle",
                daemon=True,
            ).start()
            return self._state

    def _gather(
        self,
        file: BinaryIO,
        seconds: float,
        documents: Mapping[str, Callable[[], Any]],
        metrics: Callable[[], bytes],
        bootstrap: str,
    ) -> None:
        state = self._state
        try:
            with Parts(file, state.name.removesuffix(SUFFIX)) as parts:
                for name, make in documents.items():
                    parts.add(f"{name}.json", make)
                parts.add("machine.json", lambda: json_file(os.path.join(self._data_dir, "machine.json")))
                parts.add("host.json", lambda: host(self._data_dir))
                self._sample(parts, metrics, seconds)
                parts.describe(bootstrap)
            file.flush()
            size = os.fstat(file.fileno()).st_size
            self._state = msgspec.structs.replace(state, state="ready", bytes=size, missing=parts.missing)
        except Exception as error:  # noqa: BLE001 - a fault here must not leave a bundle that is never ready
            log.exception("a bundle was not gathered")
            self._state = msgspec.structs.replace(state, state="failed", missing={"bundle": str(error)})

    def _sample(self, parts: Parts, metrics: Callable[[], bytes], seconds: float) -> None:
        ends, number = time.monotonic() + seconds, 0
        while True:
            parts.add(f"metrics/{number:03d}.txt", lambda: metrics().decode())
            number += 1
            left = ends - time.monotonic()
            if left <= 0 or self._ending.wait(min(_SAMPLE_S, left)):
                return

    def download(self, name: str) -> Response:
        """The file.

        Raises:
            HttpError: 404: no bundle that is ready has that name.
        """
        with self._lock:
            state = self._state
            if self._file is None or state.state != "ready" or state.name != name:
                raise HttpError(404, "NO_BUNDLE", f"there is no bundle {name}; GET /v1/bundle says which one is ready")
            descriptor = os.dup(self._file.fileno())
        headers = (("Content-Disposition", f'attachment; filename="{name}"'),)
        return Response(b"", 200, GZIP, headers, _Pieces(descriptor), state.bytes)

    def close(self) -> None:
        """The broker ends: sample no more."""
        self._ending.set()


class _Pieces:
    """The bytes of a file, by a descriptor that is closed in the end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __iter__(self) -> Iterator[bytes]:
        at = 0
        while piece := os.pread(self._descriptor, _PIECE_BYTES, at):
            at += len(piece)
            yield piece

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
