"""Key stores of each kind, and what is said of those that cannot be used."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

import certificates
from millstream.errors import Rejected
from millstream.secure.authority import issue
from millstream.secure.contexts import client_context, server_context
from millstream.secure.material import FILE_BYTES_MAX, read_material
from millstream.secure.options import TlsOptions

PAIR = issue(certificates.authority(), "broker", ["localhost"])
OTHER = issue(certificates.authority(), "other", ["localhost"])
CA = certificates.authority().certificate
PASSWORD = "hush hush"


def written(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    return str(tmp_path / name)


def encrypted(key):
    plain = serialization.load_pem_private_key(key, None)
    cipher = serialization.BestAvailableEncryption(PASSWORD.encode())
    return plain.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher)


def in_pkcs12(password):
    key = serialization.load_pem_private_key(PAIR.key, None)
    certificate, ca = (x509.load_pem_x509_certificate(each) for each in (PAIR.certificate, CA))
    cipher = serialization.BestAvailableEncryption(password.encode())
    return pkcs12.serialize_key_and_certificates(b"broker", key, certificate, [ca], cipher)


def usable(options):
    material = read_material(options)
    server_context(material, options)
    assert PASSWORD not in repr(material)
    assert "PRIVATE" not in repr(material)
    return material


def test_a_file_has_key_and_chain_in_any_order(tmp_path):
    for data in (PAIR.key + PAIR.certificate + CA, PAIR.certificate + CA + PAIR.key):
        found = usable(TlsOptions(keystore_location=written(tmp_path, "broker.pem", b"comment\n" + data)))
        assert found.chain == PAIR.certificate + CA


def test_key_and_chain_stand_in_settings_in_one_line_too(tmp_path):
    chain, key = (text.decode().strip() for text in (PAIR.certificate, PAIR.key))
    for flat in (chain, chain.replace("\n", " ")):
        usable(TlsOptions(keystore_key=key.replace("\n", " "), keystore_certificate_chain=flat))


def test_key_and_certificate_are_in_two_files(tmp_path):
    key, chain = written(tmp_path, "key.pem", PAIR.key), written(tmp_path, "chain.pem", PAIR.certificate)
    usable(TlsOptions(key_location=key, certificate_location=chain))


def test_an_encrypted_key_needs_its_password(tmp_path):
    path = written(tmp_path, "broker.pem", encrypted(PAIR.key) + PAIR.certificate)
    usable(TlsOptions(keystore_location=path, key_password=PASSWORD))
    for wrong in ("", "wrong"):
        with pytest.raises(Rejected, match="private key is encrypted"):
            usable(TlsOptions(keystore_location=path, key_password=wrong))


def test_pkcs12_is_read_with_its_password(tmp_path):
    path = written(tmp_path, "broker.p12", in_pkcs12(PASSWORD))
    options = TlsOptions(keystore_type="PKCS12", keystore_location=path, keystore_password=PASSWORD)
    assert usable(options).chain == PAIR.certificate + CA
    trust = TlsOptions(truststore_type="PKCS12", truststore_location=path, truststore_password=PASSWORD)
    client_context(read_material(trust), trust)
    with pytest.raises(Rejected, match="the password is wrong"):
        read_material(TlsOptions(keystore_location=path, keystore_password="no"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes.fromhex("feedfeed00000002"), "keytool -importkeystore -srckeystore"),
        (b"", "neither PEM nor PKCS12"),
        (b"hello", "neither PEM nor PKCS12"),
        (b"\x30\x03\x02\x01\x01", "the password is wrong, or the file is damaged"),
        (PAIR.key, "has no certificate"),
        (PAIR.certificate, "has no private key"),
        (OTHER.key + PAIR.certificate, "the private key does not fit the certificate"),
        (PAIR.key + PAIR.certificate.replace(b"MII", b"MIX", 1), "cannot be used"),
        (b"-----BEGIN NOTHING", "has no PEM block"),
        (b"\0" * (FILE_BYTES_MAX + 1), "has more than"),
    ],
)
def test_what_is_no_key_store_is_said(tmp_path, data, words):
    path = written(tmp_path, "store", data)
    with pytest.raises(Rejected) as failure:
        usable(TlsOptions(keystore_location=path))
    assert words in failure.value.message


@pytest.mark.parametrize(
    ("suites", "words"),
    [
        (("TLS_AES_128_GCM_SHA256",), "expected none or all of them"),
        (("TLS_NO_WITH_SUCH",), "OpenSSL knows none"),
    ],
)
def test_suites_that_cannot_be_had_are_refused(suites, words):
    options = TlsOptions(
        keystore_key=PAIR.key.decode(), keystore_certificate_chain=PAIR.certificate.decode(), cipher_suites=suites
    )
    with pytest.raises(Rejected, match=words):
        usable(options)


def test_suites_have_the_names_of_iana_or_openssl():
    for name in ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"):
        options = TlsOptions(
            keystore_key=PAIR.key.decode(), keystore_certificate_chain=PAIR.certificate.decode(), cipher_suites=(name,)
        )
        context = server_context(read_material(options), options)
        older = [each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"]
        assert older == ["ECDHE-ECDSA-AES128-GCM-SHA256"]
