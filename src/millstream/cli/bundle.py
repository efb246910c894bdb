"""``millstream bundle``: the facts that a supporter needs about a broker, in one file that may be sent.

==================  ===============================================================================================
``bundle.json``     when, of whom, by which version; each part with its size, or why it is not there
``settings.json``   the settings of the running broker with their sources
``state/``          what the HTTP port tells: health, status, cluster, Raft groups, tiers, caches, certificates
``metrics/``        ``/metrics``, one file a sample
``logs/``           the last part of each log file that is named
``tune.json``       what ``millstream tune`` finds on this machine
``machine.json``    what ``millstream tune bench`` has measured (with ``--data``)
``host.json``       kernel, processor, memory, disk, versions of packages
==================  ===============================================================================================

**Promise.** No record and no secret is in it: settings that are secret come without a value from the broker, and every
text passes through `admin.redaction`. Tables of pipelines are left out, because their reasons may quote records.

**What fails** is left out, and ``bundle.json`` says why: a broker that is down still gives logs, machine and tune.
**Ctrl-C** ends the sampling early, and the file has what is there. The file appears whole or not at all, and only its
owner may read it; one that exists is never overwritten.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from millstream.admin.bundle import SUFFIX, Parts, host, json_file
from millstream.cli.broker_http import https_context, login_headers
from millstream.cli.connect import admin_client, broker_configs
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, remark
from millstream.model.endpoint_setting import HTTP_ENDPOINT

if TYPE_CHECKING:
    from collections.abc import Generator

_STATE: Final = {
    "health": "/healthz",
    "status": "/v1/status",
    "cluster": "/v1/cluster",
    "recovery": "/v1/recovery",
    "tiers": "/v1/tiers",
    "cache": "/v1/cache",
    "certificates": "/v1/certificates",
}
_LOG_BYTES: Final = 10 << 20
_ANSWER_BYTES: Final = 64 << 20
_TUNE_S: Final = 60.0
_SAMPLE_S: Final = 15.0


@click.command("bundle")
@click.option("--output", "-o", type=click.Path(dir_okay=False), metavar="FILE", help="File to write (.tar.gz).")
@click.option("--minutes", type=click.FloatRange(0, 60), default=10.0, metavar="N", help="How long to sample metrics.")
@click.option("--log", "logs", multiple=True, type=click.Path(), metavar="FILE", help="A log file; may be repeated.")
@click.option("--data", type=click.Path(file_okay=False), metavar="DIR", help="Data directory of the broker.")
@as_json_option
@bootstrap_option
@timeout_option
def bundle(
    output: str | None,
    minutes: float,
    logs: tuple[str, ...],
    data: str | None,
    as_json: bool,
    bootstrap: str,
    timeout: float,
) -> None:
    """Gather settings, state, metrics, logs and the machine into one file, without records and secrets."""
    path = output or time.strftime("millstream-bundle-%Y%m%d-%H%M%S.tar.gz", time.gmtime())
    if os.path.exists(path):
        raise WrongUsage(f"--output: {path} exists already; name another file")
    folder = os.path.basename(path).removesuffix(SUFFIX)
    with _appearing(path) as raw, Parts(raw, folder, (CommandFailed,)) as parts:
        url = _settings(parts, bootstrap, timeout)
        for name, route in _STATE.items():
            parts.add(f"state/{name}.json", lambda route=route: json.loads(_asked(url, route, timeout)))
        for number, log in enumerate(logs):
            parts.add(f"logs/{number}-{os.path.basename(log)}", lambda log=log: _tail(log))
        if data is not None:
            parts.add("machine.json", lambda: json_file(os.path.join(data, "machine.json")))
        parts.add("tune.json", _tuned)
        parts.add("host.json", lambda: host(data))
        _sample(parts, url, timeout, minutes * 60)
        parts.describe(bootstrap)
    if as_json:
        print_json({"file": path, "parts": parts.sizes, "missing": parts.missing})
        return
    for name, reason in parts.missing.items():
        remark(f"without {name}: {reason}")
    remark(f"wrote {path}: {len(parts.sizes)} parts, {os.path.getsize(path):,} bytes")


def _settings(parts: Parts, bootstrap: str, timeout: float) -> str:
    """Add the settings; returns the URL of the broker's HTTP port, empty if it is not known."""
    found: dict[str, Any] = {}

    def ask() -> Any:
        found.update(broker_configs(admin_client(bootstrap), bootstrap, timeout))
        return {
            name: {"value": None if entry.is_sensitive else entry.value, "source": int(entry.source)}
            for name, entry in sorted(found.items())
        }

    parts.add("settings.json", ask)
    entry = found.get(HTTP_ENDPOINT)
    return "" if entry is None else (entry.value or "").rstrip("/")


def _asked(url: str, route: str, timeout: float) -> str:
    import urllib.error
    import urllib.request

    if not url:
        raise CommandFailed("no broker named its HTTP port")
    request = urllib.request.Request(url + route, headers=login_headers(url))  # noqa: S310 (a broker's own address)
    context = https_context() if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, timeout=timeout, context=context) as answer:  # noqa: S310
            return answer.read(_ANSWER_BYTES).decode(errors="replace")
    except urllib.error.HTTPError as refusal:
        with refusal:
            text = refusal.read(_ANSWER_BYTES).decode(errors="replace")
        if route == "/healthz":
            return text  # a broker that is not well says so with 503
        raise CommandFailed(f"HTTP {refusal.code}: {text.strip()}") from None


def _sample(parts: Parts, url: str, timeout: float, seconds: float) -> None:
    """Add samples of the metrics until the time is over, the broker answers no more, or Ctrl-C."""
    end, number = time.monotonic() + seconds, 0
    try:
        if seconds:
            remark(f"sampling metrics for {seconds / 60:g} minutes; Ctrl-C ends it early and keeps what is there")
        while True:
            name = f"metrics/{number:03d}.txt"
            parts.add(name, lambda: _asked(url, "/metrics", timeout))
            number += 1
            left = end - time.monotonic()
            if name in parts.missing or left <= 0:
                return
            time.sleep(min(_SAMPLE_S, left))
    except KeyboardInterrupt:
        remark("the sampling was ended early")


def _tail(path: str) -> str:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES))
        text = file.read(_LOG_BYTES).decode(errors="replace")
    return text if size <= _LOG_BYTES else text.partition("\n")[2]


def _tuned() -> Any:
    command = [sys.executable, "-m", "millstream.cli", "tune", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TUNE_S, check=False)
    return json.loads(done.stdout)


@contextmanager
def _appearing(path: str) -> Generator[BinaryIO]:
    """A file that is at ``path`` when the block ends without an error. It is made before the block, so that a
    directory that is not there or takes no files is known before the work, not after.
    """
    part = f"{path}.{os.getpid()}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
        try:
            os.link(part, path)  # fails where the file exists by now, as rename would not
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            os.rename(part, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)
