"""Object stores in processes of their own: S3 by moto, and a store like it that ignores conditions of a request."""

import contextlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from millstream.config.ports import free_ports

AZURITE = "3.37.0"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that every installation of it has."""


@contextlib.contextmanager
def moto():
    """The URL of an S3 server with the bucket ``lake``. A process: some libraries hold this one as they ask."""
    (port,) = free_ports(1)
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _answer(process, urllib.request.Request(f"{url}/lake", method="PUT"))
        yield url
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def azurite():
    """The URL of Azure's emulator with the container ``lake``, fetched from npm on first use."""
    from pyarrow import fs

    from conformance import tools

    install = [*tools.npm(), "install", "--silent", f"azurite@{AZURITE}", "--prefix"]
    place = tools.cached(f"azurite-{AZURITE}", lambda target: tools.run([*install, str(target)], target))
    (port,) = free_ports(1)
    options = ["--blobPort", str(port), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]
    process = subprocess.Popen([str(place / "node_modules" / ".bin" / "azurite-blob"), *options])
    try:
        at = f"127.0.0.1:{port}"
        _answer(process, urllib.request.Request(f"http://{at}/devstoreaccount1/none?comp=list"), refused=True)
        where = {"blob_storage_authority": at, "dfs_storage_authority": at}
        scheme = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
        fs.AzureFileSystem("devstoreaccount1", account_key=AZURITE_KEY, **where, **scheme).create_dir("lake")
        yield f"http://{at}"
    finally:
        process.kill()  # it waits for connections that are open
        process.wait()


def _answer(process, request, *, refused=False):
    """Wait until a server answers; with ``refused`` an error is one, too."""
    while True:
        try:
            urllib.request.urlopen(request).close()
            return
        except urllib.error.HTTPError as error:
            if not refused:
                raise
            error.close()
            return
        except OSError:
            assert process.poll() is None, "the server has ended"
            threading.Event().wait(0.05)


def environment(url, home):
    """Credentials and endpoint as a person sets them."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "HOME": str(home),
    }


@contextlib.contextmanager
def without_conditions(target):
    """The URL of a server that passes requests on without If-None-Match and If-Match."""
    process = subprocess.Popen([sys.executable, __file__, target], stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target = ""

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if not name.lower().startswith("if-")}
        request = urllib.request.Request(self.target + self.path, body or None, headers, method=self.command)
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    _Passing.target = sys.argv[1]
    passing = ThreadingHTTPServer(("127.0.0.1", 0), _Passing)
    print(passing.server_port, flush=True)
    passing.serve_forever()
