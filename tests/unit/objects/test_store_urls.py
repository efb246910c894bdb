"""A URL names the store, its place and its options; a wrong one says what is wrong."""

from __future__ import annotations

import sys

import pytest

from millstream.errors import Rejected
from millstream.objects.credentials import aws_settings
from millstream.objects.errors import Denied
from millstream.objects.opening import open_store
from millstream.objects.store import ObjectKey
from millstream.objects.url import StoreUrl, parse_url


@pytest.mark.parametrize(
    "text,scheme,bucket,path,shown",
    [
        ("file:///var/lib/bucket", "file", "", "/var/lib/bucket", "file:///var/lib/bucket"),
        ("/var/lib/bucket/", "file", "", "/var/lib/bucket", "file:///var/lib/bucket"),
        ("file://localhost/a/./b/../c", "file", "", "/a/c", "file:///a/c"),
        ("file:///with%20space", "file", "", "/with space", "file:///with%20space"),
        ("/a, b:9 %41 #é?", "file", "", "/a, b:9 %41 #é?", "file:///a%2C%20b%3A9%20%2541%20%23%C3%A9%3F"),
        ("/\udcff", "file", "", "/\udcff", "file:///%FF"),
        ("s3://bucket", "s3", "bucket", "", "s3://bucket"),
        ("s3://bucket/", "s3", "bucket", "", "s3://bucket"),
        ("s3://my.bucket-1/a/b/", "s3", "my.bucket-1", "a/b", "s3://my.bucket-1/a/b"),
        ("gs://bucket_x/p", "gs", "bucket_x", "p", "gs://bucket_x/p"),
        ("az://container/p", "az", "container", "p", "az://container/p"),
    ],
)
def test_a_url_is_taken_apart(text, scheme, bucket, path, shown):
    url = parse_url(text)
    assert url == StoreUrl(scheme, bucket, path)
    assert str(url) == shown
    assert parse_url(str(url)) == url


@pytest.mark.parametrize(
    "text,said",
    [
        ("", "known form"),
        ("bucket", "known form"),
        ("relative/path", "known form"),
        ("http://host/bucket", "known form"),
        ("s3a://bucket", "known form"),
        ("s3://bucket?region=x", "known form"),
        ("s3://", "bucket"),
        ("s3:///prefix", "bucket"),
        ("s3://UPPER", "bucket"),
        ("s3://bucket/../other", "object key"),
        ("s3://bucket/a//b", "object key"),
        ("s3://key:secret@bucket", "credentials"),
        ("file://host/dir", "absolute directory"),
        ("file:relative", "absolute directory"),
        ("file:///", "absolute directory"),
        ("s3://[bucket", "no URL"),
    ],
)
def test_a_wrong_url_is_refused_in_words(text, said):
    with pytest.raises(Rejected, match=said) as raised:
        parse_url(text)
    assert "secret" not in raised.value.message


def test_a_directory_needs_no_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    store = open_store(f"file://{tmp_path}/bucket")
    store.put(ObjectKey("a"), [b"1"])
    assert (tmp_path / "bucket" / "a").read_bytes() == b"1"


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "millstream.objects.remote", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Missing(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "obstore", raising=False)
    with pytest.raises(Rejected, match=r"pip install 'PATH\[objects\]'"):
        open_store("s3://bucket")


class _Missing:
    """An import system without obstore."""

    def find_spec(self, name, *_):
        if name == "obstore":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_a_store_opens_without_a_request(scheme, monkeypatch, tmp_path):
    key = tmp_path / "key.json"
    key.write_text('{"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "t"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert open_store(f"{scheme}://bucket/prefix").url == f"{scheme}://bucket/prefix"


def test_azure_without_an_account_says_what_is_missing(monkeypatch):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Denied, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_store("az://container")


@pytest.fixture
def aws(tmp_path):
    directory = tmp_path / ".aws"
    directory.mkdir()
    (directory / "credentials").write_text(
        "[default]\naws_access_key_id = A\naws_secret_access_key = %S\n[work]\naws_access_key_id=W\n"
        "aws_secret_access_key=X\naws_session_token=T\n"
    )
    (directory / "config").write_text(
        "[default]\nregion = eu-central-1\n[profile work]\nregion = eu-west-1\n[profile sso]\nsso_session = corp\n"
    )
    return {"HOME": str(tmp_path)}


def test_the_default_profile(aws):
    assert aws_settings(aws) == {"access_key_id": "A", "secret_access_key": "%S", "region": "eu-central-1"}


def test_a_named_profile(aws):
    assert aws_settings(aws | {"AWS_PROFILE": "work"}) == {
        "access_key_id": "W",
        "secret_access_key": "X",
        "session_token": "T",
        "region": "eu-west-1",
    }


@pytest.mark.parametrize(
    "variable", ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"]
)
def test_credentials_of_the_environment_come_first(aws, variable):
    assert aws_settings(aws | {variable: "x", "AWS_REGION": "r"}) == {}


def test_an_endpoint_of_a_compatible_server(aws):
    settings = aws_settings(aws | {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"})
    assert settings["endpoint"] == "http://b"


def test_a_profile_that_needs_a_login_is_refused_with_the_command(aws):
    with pytest.raises(Denied, match=r"export-credentials --profile sso"):
        aws_settings(aws | {"AWS_PROFILE": "sso"})


def test_a_profile_that_does_not_exist(aws):
    with pytest.raises(Denied, match="'other'"):
        aws_settings(aws | {"AWS_PROFILE": "other"})


def test_a_broken_file_is_named(aws, tmp_path):
    (tmp_path / ".aws" / "config").write_text("no section\n")
    with pytest.raises(Denied, match="config could not be read"):
        aws_settings(aws)


def test_no_files_are_no_error(tmp_path):
    assert aws_settings({"HOME": str(tmp_path)}) == {}
