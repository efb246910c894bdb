"""Errors of remote stores are told apart: what may be repeated, what may have happened, what is refused."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import threading

import pytest
from obstore.store import GCSStore
from store_suite import KEY, ZERO, StoreSuite, keys, read

from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Unavailable
from millstream.model.quantities import FilePosition
from millstream.objects.credentials import files
from millstream.objects.errors import Conflict, Denied, NotFound, Throttled, Unsupported
from millstream.objects.opening import open_store
from millstream.objects.remote import RemoteStore
from millstream.objects.store import ABSENT, Version
from millstream.objects.url import parse_url


class TestS3(StoreSuite):
    @pytest.fixture
    def store(self, bucket):
        return RemoteStore(parse_url(f"s3://{bucket}/some/prefix"))


def test_a_prefix_keeps_two_stores_of_one_bucket_apart(bucket):
    one, other = open_store(f"s3://{bucket}/one"), open_store(f"s3://{bucket}/other")
    one.put(KEY, [b"1"])
    other.put(KEY, [b"2"])
    assert (read(one, KEY), read(other, KEY)) == (b"1", b"2")
    assert keys(open_store(f"s3://{bucket}")) == [f"one/{KEY}", f"other/{KEY}"]


def test_a_missing_bucket_is_named_with_the_remedy(s3_environment):
    store = RemoteStore(parse_url("s3://no-such-bucket"))
    for call in (
        lambda: store.put(KEY, [b""]),
        lambda: store.get(KEY, ZERO, FilePosition(1)),
        lambda: list(store.list()),
    ):
        with pytest.raises(NotFound, match=r"s3://no-such-bucket: .*Create the bucket"):
            call()


_ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>words of the store</Message></Error>"

ANSWERS = [
    # status, code, error of a put, error of a get
    (503, "SlowDown", Throttled, Throttled),
    (503, "", Throttled, Throttled),
    (429, "", Throttled, Throttled),
    (500, "InternalError", OutcomeUnknown, Unavailable),
    (502, "", OutcomeUnknown, Unavailable),
    (504, "", OutcomeUnknown, Unavailable),
    (400, "RequestTimeout", OutcomeUnknown, Unavailable),
    (409, "ConditionalRequestConflict", OutcomeUnknown, Unavailable),
    (412, "PreconditionFailed", Conflict, Conflict),
    (403, "AccessDenied", Denied, Denied),
    (401, "", Denied, Denied),
    (400, "ExpiredToken", Denied, Denied),
    (400, "InvalidArgument", Rejected, Rejected),
    (404, "NoSuchKey", NotFound, NotFound),
    (404, "NoSuchBucket", NotFound, NotFound),
]


@pytest.fixture
def answering(monkeypatch, tmp_path):
    """A store whose server gives one answer to everything, and the answer to set."""
    answer = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer.setdefault("tokens", []).append(self.headers.get("x-amz-security-token"))
            answer["headers"] = {name.lower(): value for name, value in self.headers.items()}
            if answer.get("hangs up"):
                self.close_connection = True
                return
            body = answer["body"]
            self.send_response(answer["status"])
            for name, value in answer.get("send", {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(answer.get("length", len(body))))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.close_connection = True

        do_PUT = do_GET = do_HEAD = do_POST = answer  # noqa: N815  # names of the base class

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HOME", str(tmp_path))
    yield RemoteStore(parse_url("s3://bucket/prefix")), answer
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("status,code,put_error,get_error", ANSWERS)
def test_each_answer_of_a_server_becomes_an_error_of_the_taxonomy(answering, status, code, put_error, get_error):
    store, answer = answering
    answer.update(status=status, body=_ERROR.format(code).encode() if code else b"")
    for call, kind in (
        (lambda: store.put(KEY, [b"data"]), put_error),
        (lambda: store.put(KEY, [b"data"], ABSENT), put_error),
        (lambda: store.get(KEY, ZERO, FilePosition(1)), get_error),
    ):
        with pytest.raises(MillstreamError) as raised:
            call()
        assert type(raised.value) is kind, raised.value.message
        assert raised.value.message.startswith("s3://bucket/prefix: topics/")
        assert len(raised.value.message) < 400
        assert "\n" not in raised.value.message
        if code:
            assert "words of the store" in raised.value.message


def test_a_lost_connection_is_an_unknown_outcome_of_a_put_only(answering):
    store, answer = answering
    answer["hangs up"] = True
    with pytest.raises(OutcomeUnknown):
        store.put(KEY, [b"data"])
    with pytest.raises(OutcomeUnknown):
        store.delete([KEY])
    with pytest.raises(Unavailable):
        store.get(KEY, ZERO, FilePosition(1))
    with pytest.raises(Unavailable):
        store.head(KEY)
    with pytest.raises(Unavailable):
        list(store.list())


def test_a_body_that_breaks_off_is_unavailable(answering):
    store, answer = answering
    answer.update(status=206, body=b"12", length=4)
    with pytest.raises(Unavailable):
        store.get(KEY, ZERO, FilePosition(4))


def test_a_server_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="s3://bucket"):
        RemoteStore(parse_url("s3://bucket")).head(KEY)


def test_a_session_token_that_is_renewed_in_its_file_is_used_from_the_next_call_on(answering, monkeypatch, tmp_path):
    _, answer = answering
    answer.update(status=200, body=b"x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    (tmp_path / ".aws").mkdir()
    file = tmp_path / ".aws" / "credentials"

    def write(token, whole=True):
        keys = "[default]\naws_access_key_id=A\naws_secret_access_key=S\n"
        new = file.with_name("new")
        new.write_text(keys + f"aws_session_token={token}\n" if whole else keys)
        new.replace(file)

    write("first")
    store = RemoteStore(parse_url("s3://bucket/prefix"))

    def used():
        answer["tokens"] = []
        with contextlib.suppress(MillstreamError):  # the server knows no ranges
            store.get(KEY, ZERO, FilePosition(1))
        return answer["tokens"]

    assert used() == ["first"]
    write("second")
    assert used() == ["second"]
    write("third", whole=False)
    assert used() == ["second"], "a file that is half written counts for nothing"
    file.write_text("nothing")
    assert used() == ["second"]
    file.unlink()
    assert used() == ["second"]
    write("third")
    assert used() == ["third"]


def test_a_call_that_is_denied_while_the_token_is_renewed_is_repeated(answering, monkeypatch, tmp_path):
    _, answer = answering
    answer.update(status=400, body=_ERROR.format("ExpiredToken").encode())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    (tmp_path / ".aws").mkdir()
    file = tmp_path / ".aws" / "credentials"

    def write(token):
        file.write_text(f"[default]\naws_access_key_id=A\naws_secret_access_key=S\naws_session_token={token}\n")

    write("first")
    store = RemoteStore(parse_url("s3://bucket/prefix"))
    tokens = []

    class Tokens(list):
        def append(self, token):
            tokens.append(token)
            if token == "first":
                write("second, which is longer")

    answer["tokens"] = Tokens()
    with pytest.raises(Denied):
        store.get(KEY, ZERO, FilePosition(1))
    assert tokens == ["first", "second, which is longer"]
    with pytest.raises(Denied):
        store.get(KEY, ZERO, FilePosition(1))
    assert len(tokens) == 3, "once, and only if there are others"


def test_files_that_hold_credentials(tmp_path):
    assert [os.path.basename(one) for one in files("s3", {"HOME": "/h"})] == ["credentials", "config"]
    assert files("gs", {"HOME": "/h", "GOOGLE_APPLICATION_CREDENTIALS": "/k"})[0] == "/k"
    assert files("az", {"HOME": "/h"}) == ()


def test_a_store_without_conditional_writes_says_so(answering):
    store, answer = answering
    answer.update(status=501, body=_ERROR.format("NotImplemented").encode())
    with pytest.raises(Unsupported):
        store.put(KEY, [b"data"], Version("1"))


def test_google_compares_generations(answering, monkeypatch, tmp_path):
    _, answer = answering
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
    account = {
        "gcs_base_url": endpoint,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    answer.update(status=200, body=b"", send={"ETag": '"tag"', "x-goog-generation": "77"})
    store = RemoteStore(parse_url("gs://bucket/prefix"))
    store._store = GCSStore("bucket", prefix="prefix", client_options={"allow_http": True})  # a server without TLS
    written = store.put(KEY, [b"data"])
    assert written == "77"
    store.put(KEY, [b"data"], written)
    assert answer["headers"]["x-goog-if-generation-match"] == "77"
    store.put(KEY, [b"data"], ABSENT)
    assert answer["headers"]["x-goog-if-generation-match"] == "0"
