"""Kafka's names of a client's security, in Java's and librdkafka's spelling; what is none of them is refused."""

import pickle

import pytest

import certificates
from millstream.client.security import Login, Security, context_of, read_security, resolve, to_librdkafka
from millstream.errors import Rejected
from millstream.secure.tokens.issuer import TokenEndpoint

JAAS = "org.apache.kafka.common.security"
PLAIN_LINE = f'{JAAS}.plain.PlainLoginModule required username="al\\"ice" password="hush; hush";'


def test_nothing_is_plaintext():
    assert read_security({"bootstrap.servers": "h:1", "acks": "all"}) == Security()


@pytest.mark.parametrize(
    "given",
    [
        {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"},
        {"ssl.ca.location": "/ca.pem"},
    ],
)
def test_java_and_librdkafka_name_the_authority_alike(given):
    security = read_security({"security.protocol": "ssl", **given})
    assert security.protocol == "SSL"
    assert security.tls.truststore_location == "/ca.pem"
    assert security.check_name


@pytest.mark.parametrize("naming", ["", "none"])
def test_the_name_is_not_checked_where_that_is_said(naming):
    security = read_security({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": naming})
    assert not security.check_name
    assert security.verify
    assert not read_security({"enable.ssl.certificate.verification": "false"}).verify


@pytest.mark.parametrize(
    "given",
    [
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_LINE},
        {"sasl.mechanisms": "PLAIN", "sasl.username": 'al"ice', "sasl.password": "hush; hush"},
    ],
)
def test_a_login_is_a_line_of_jaas_or_two_properties(given):
    security = read_security({"security.protocol": "SASL_SSL", **given})
    assert security.login == Login("PLAIN", 'al"ice', "hush; hush")
    assert "hush" not in repr(security)
    assert pickle.loads(pickle.dumps(security)) == security
    assert to_librdkafka(security)["sasl.password"] == "hush; hush"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"security.protokol": "SSL"}, "did you mean security.protocol?"),
        ({"ssl.truststore.locations": "/x"}, "did you mean ssl.truststore.location?"),
        ({"security.protocol": "TLS"}, "'TLS' is not valid"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism: ''"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "'GSSAPI' is not valid"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "needs sasl.username"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "needs sasl.oauthbearer.token",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": PLAIN_LINE},
            "PlainLoginModule is not for sasl.mechanism=SCRAM-SHA-256",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "evil.Module required;"},
            "expected one line such as",
        ),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "'ldap' is not valid"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols"),
        ({"ssl.key.password": "${env:NO_SUCH_VARIABLE}"}, "the environment has no variable"),
        ({"ssl.key.password": "${file:/no/such/file}"}, "cannot be read"),
    ],
)
def test_what_is_not_kafkas_is_refused(given, words):
    with pytest.raises(Rejected) as failure:
        read_security(given)
    assert words in failure.value.message
    assert "hush" not in failure.value.message


def test_references_stand_for_variables_and_files(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    pairs = tmp_path / "pairs.properties"
    pairs.write_text("# password=no\npassword = yes\n")
    monkeypatch.setenv("USER_OF_TEST", "alice")
    assert resolve("${env:USER_OF_TEST}:${file:" + str(secret) + "}") == "alice:hush"
    assert resolve("${file:" + str(pairs) + ":password}") == "yes"
    with pytest.raises(Rejected, match="has no line user="):
        resolve("${file:" + str(pairs) + ":user}")


def test_a_context_is_kept_until_its_file_changes(tmp_path):
    certificates.write(tmp_path, "alice")
    security = read_security({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")})
    first = context_of(security)
    assert context_of(security) is first
    (tmp_path / "new.pem").write_bytes(certificates.authority("Other").certificate)
    (tmp_path / "new.pem").replace(tmp_path / "ca.pem")
    assert context_of(security) is not first


def test_librdkafka_gets_pem_whatever_the_material_was(tmp_path):
    own = certificates.write(tmp_path, "alice")
    given = {"ssl.keystore.location": str(own), "ssl.truststore.location": str(tmp_path / "ca.pem")}
    found = to_librdkafka(read_security({"security.protocol": "SSL", **given}))
    assert found["ssl.ca.pem"].startswith("-----BEGIN CERTIFICATE")
    assert found["ssl.key.pem"].startswith("-----BEGIN PRIVATE KEY")
    assert found["ssl.certificate.pem"].startswith("-----BEGIN CERTIFICATE")


@pytest.mark.parametrize(
    "given",
    [
        {
            "sasl.oauthbearer.client.credentials.client.id": "svc",
            "sasl.oauthbearer.client.credentials.client.secret": "hush",
            "sasl.oauthbearer.scope": "topics",
        },
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "svc",
            "sasl.oauthbearer.client.secret": "hush",
            "sasl.oauthbearer.scope": "topics",
        },
        {
            "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'clientId="svc" clientSecret="hush" scope="topics";',
            "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
            "OAuthBearerLoginCallbackHandler",
        },
    ],
)
def test_client_credentials_in_three_spellings(given):
    url = "https://id.example.org/token"
    common = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    security = read_security({**common, **given, "sasl.oauthbearer.token.endpoint.url": url})
    assert security.login.endpoint == TokenEndpoint(url, "svc", "hush", "topics")
    assert "hush" not in repr(security) + repr(security.login.endpoint)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sasl.oauthbearer.token.endpoint.url": "http://id.example.org/token"}, "https://HOST"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://id.example.org/token"}, "client.secret"),
        ({"sasl.login.callback.handler.class": "com.evil.Handler"}, "is not supported"),
        ({"sasl.oauthbearer.method": "azure"}, "is not supported"),
    ],
)
def test_a_token_from_nowhere_is_refused(given, words):
    with pytest.raises(Rejected) as failure:
        read_security({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", **given})
    assert words in failure.value.message
