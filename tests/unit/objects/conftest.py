"""A simulated S3 server (moto) for the session, in a process thread of the tests. It is imported on first use."""

import itertools
import logging
import urllib.request

import pytest

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_server():
    """The URL of the server."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_environment(s3_server, monkeypatch, tmp_path):
    """Credentials and endpoint as a person sets them."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def bucket(s3_environment):
    """The name of a new bucket."""
    name = f"bucket-{next(_numbers)}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_environment}/{name}", method="PUT")).close()
    return name
