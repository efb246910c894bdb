"""Secrets are taken out of texts and documents; what is none stays readable."""

import pytest

from millstream.admin.redaction import HIDDEN, redacted, redacted_document


@pytest.mark.parametrize(
    "text",
    [
        "ssl.keystore.password=S3CRET",
        "ssl.key.password : S3CRET",
        '{"sasl.password": "S3CRET with \\" spaces S3CRET"}',
        "password: 'S3CRET it is'",
        "start --set ssl.truststore.password=S3CRET --http x",
        "login --password S3CRET --user a",
        'sasl.jaas.config=org.Module required username="a" password="S3CRET";',
        "AWS_SECRET_ACCESS_KEY=S3CRET",
        "azure_account_key=S3CRET==",
        "https://user:S3CRET@host/path",
        "s3://S3CRET@bucket/",
        "https://a.blob/x?sv=1&sig=S3CRET&se=2",
        "Authorization: Basic UzNDUkVUUzNDUkVU S3".replace("UzNDUkVUUzNDUkVU", "S3CRETS3CRET"),
        "Authorization: Bearer S3CRET.S3CRET",
        "a eyJhbGciOiJub25lIn0.S3CRET.x b",
        "-----BEGIN EC PRIVATE KEY-----\nS3CRET\n-----END EC PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nS3CRET cut off",
    ],
    ids=range(17),
)
def test_a_secret_is_taken_out(text):
    assert "S3CRET" not in redacted(text)
    assert HIDDEN in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-20T21:54:07.123Z INFO  [shard 0] ready in 0.21 s",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        "reassignment=3, signal: 15",
        "GET https://broker-1:9644/v1/cluster",
        'millstream_log_lines_total{level="error",shard="0"} 3',
    ],
    ids=range(5),
)
def test_what_is_no_secret_stays(text):
    assert redacted(text) == text


def test_a_document_is_searched_in_depth():
    document = {"a": [{"client.secret": {"value": "S3CRET"}, "n": 3}], "t": "password=S3CRET", "u": None}
    found = redacted_document(document)
    assert found == {"a": [{"client.secret": {"value": HIDDEN}, "n": 3}], "t": f"password={HIDDEN}", "u": None}
