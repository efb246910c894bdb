"""A bundle: the facts that a supporter needs about a broker, as one archive without records and secrets.

``Parts`` writes it; ``millstream bundle`` and the broker's own ``POST /v1/bundle`` decide what is in it. Every text
passes through ``admin.redaction``. What cannot be had is left out, and ``bundle.json`` says why.
"""

import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from http.client import HTTPException
from importlib.metadata import distributions
from typing import Annotated, Any, BinaryIO, Final, Literal, Protocol, Self

import msgspec

from millstream import __version__
from millstream.admin.declared import Call, Declared
from millstream.admin.redaction import redacted, redacted_document
from millstream.admin.routing import HttpError, Request, Response, Right, dump
from millstream.errors import MillstreamError
from millstream.model.access import Operation

SUFFIX: Final = ".tar.gz"
GZIP: Final = "application/gzip"


class Parts:
    """The members of an archive, each written when it is added. A context: the archive is whole when it ends.

    ``sizes`` has the members, in bytes; ``missing`` says why a part is not there.
    """

    def __init__(self, raw: BinaryIO, folder: str, known: tuple[type[Exception], ...] = ()) -> None:
        """``folder`` is the directory that the members unpack into. ``known`` are exceptions beside the usual ones that
        become the reason of a missing part.
        """
        self.sizes: dict[str, int] = {}
        self.missing: dict[str, str] = {}
        self._began_s = time.time()
        self._folder = folder
        self._sentences = (MillstreamError, HttpError, *known)
        self._archive = tarfile.open(fileobj=raw, mode="w:gz")  # noqa: SIM115 (closed by the context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def add(self, name: str, make: Callable[[], Any]) -> None:
        """Add what ``make`` gives: text, or a document. What it raises becomes the reason of a missing part."""
        try:
            made = make()
        except self._sentences as failure:
            self.missing[name] = redacted(str(failure))
        except (OSError, ValueError, RecursionError, HTTPException, subprocess.SubprocessError) as error:
            self.missing[name] = redacted(f"{type(error).__name__}: {error}")
        else:
            text = redacted(made) if isinstance(made, str) else json.dumps(redacted_document(made), indent=1)
            self._write(name, text.encode(errors="replace"))

    def describe(self, bootstrap: str) -> None:
        """Add ``bundle.json``, the last member."""
        about = {
            "version": __version__,
            "started": utc(self._began_s),
            "seconds": round(time.time() - self._began_s, 1),
            "bootstrap": bootstrap,
            "parts": dict(self.sizes),
            "missing": self.missing,
        }
        self.add("bundle.json", lambda: about)

    def _write(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(f"{self._folder}/{name}")
        member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
        self._archive.addfile(member, io.BytesIO(content))
        self.sizes[name] = len(content)


def utc(seconds: float) -> str:
    """A time in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def json_file(path: str) -> Any:
    """The document in a file."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def host(data: str | None) -> dict[str, Any]:
    """Kernel, processor, memory, disk of the data directory, versions of packages."""
    found: dict[str, Any] = {
        "platform": platform.platform(),
        "python": sys.version,
        "processors": os.cpu_count(),
        "usable_processors": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "memory": _lines("/proc/meminfo"),
        "limits": _lines("/proc/self/limits"),
        "pressure": {kind: _lines(f"/proc/pressure/{kind}") for kind in ("cpu", "io", "memory")},
        "packages": {one.name: one.version for one in distributions()},
    }
    if data is not None:
        disk = os.statvfs(data)
        found["disk"] = {"bytes": disk.f_frsize * disk.f_blocks, "free_bytes": disk.f_frsize * disk.f_bavail}
    return found


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []


# Over HTTP


class BundleAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What shall be gathered."""

    minutes: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0
    """How long metrics are sampled, each fifteen seconds; 0 takes one sample."""


class Bundle(msgspec.Struct, frozen=True):
    """The newest bundle of this broker; it is kept until the next one starts or the broker ends. ``name`` is what is
    downloaded when it is ``ready``.
    """

    state: Literal["none", "gathering", "ready", "failed"]
    name: str = ""
    began: str = ""
    bytes: int = 0
    missing: dict[str, str] = {}
    """Parts that are not in it, and why."""


class GathersBundles(Protocol):
    """The broker, as far as bundles go."""

    def begin_bundle(self, request: Request, minutes: float) -> Bundle:
        """Start a bundle, unless one is being gathered."""
        ...

    def bundle(self) -> Bundle: ...

    def bundle_file(self, name: str) -> Response:
        """The file. Raises HttpError 404 if no bundle that is ready has that name."""
        ...


def _begin(broker: GathersBundles, call: Call) -> Response:
    return Response(dump(msgspec.to_builtins(broker.begin_bundle(call.request, call.body.minutes))), 202)


_ALTER: Final = Right(Operation.ALTER)

BUNDLE_ROUTES: Final[tuple[Declared[Any], ...]] = (
    Declared(
        method="GET",
        path="/v1/bundle",
        doc="The newest bundle of this broker, and whether it is ready",
        needs=_ALTER,
        handler=lambda broker, _: Response(dump(msgspec.to_builtins(broker.bundle()))),
        answer=Bundle,
    ),
    Declared(
        method="POST",
        path="/v1/bundle",
        doc="Gather settings, state, metrics and the machine into a file; while one is gathered, no other is started",
        needs=_ALTER,
        handler=_begin,
        body=BundleAsked,
        body_bytes_max=1 << 10,
        answer=Bundle,
        status=202,
        example={"minutes": 10},
    ),
    Declared(
        method="GET",
        path="/v1/bundle/{name}",
        doc="The file of a bundle that is ready, without records and secrets",
        needs=_ALTER,
        handler=lambda broker, call: broker.bundle_file(call.request.variables["name"]),
        content_type=GZIP,
    ),
)
"""Every route of bundles."""
