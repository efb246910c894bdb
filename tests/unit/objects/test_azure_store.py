"""The store suite against Azurite, Microsoft's emulator of Azure Blob Storage, from its npm package (needs npm)."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import itertools
import shutil
import socket
import subprocess
import urllib.request

import pytest
from store_suite import StoreSuite

from millstream.config.ports import free_ports
from millstream.objects.remote import RemoteStore
from millstream.objects.url import parse_url
from waits import until

pytestmark = pytest.mark.conformance

AZURITE = "azurite@3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The documented account of every emulator."""

_numbers = itertools.count()


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    """The port of a running emulator."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    place = tmp_path_factory.mktemp("azurite")
    subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(place), AZURITE],
        check=True,
        timeout=500,
    )
    (port,) = free_ports(1)
    command = [str(place / "node_modules/.bin/azurite-blob"), "--blobPort", str(port), "--inMemoryPersistence"]
    server = subprocess.Popen([*command, "--silent", "--skipApiVersionCheck"], cwd=place)

    def listens():
        assert server.poll() is None, "azurite ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(listens, "azurite does not listen")
    yield port
    server.kill()  # on SIGTERM it waits for idle connections
    server.wait(60)


class TestAzure(StoreSuite):
    @pytest.fixture
    def store(self, azurite, monkeypatch):
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{azurite}")
        name = f"container-{next(_numbers)}"
        create_container(name, azurite)
        return RemoteStore(parse_url(f"az://{name}/some/prefix"))


def create_container(name: str, port: int) -> None:
    """One request of the Blob API with a shared-key signature; the client library cannot create containers."""
    resource = f"/{ACCOUNT}/{name}"
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06", "Content-Length": "0"}
    signed = "".join(f"{header}:{headers[header]}\n" for header in ("x-ms-date", "x-ms-version"))
    # The emulator's path begins with the account, which the canonical resource begins with anyway.
    text = "PUT" + "\n" * 12 + signed + f"/{ACCOUNT}{resource}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"http://127.0.0.1:{port}{resource}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, headers=headers, method="PUT")).close()
