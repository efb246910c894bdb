"""Subjects as Java writes them, and what is no certificate.

The expected texts are those of ``X500Principal.getName()`` of Java 17.
"""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import Rejected
from millstream.secure.authority import make_authority
from millstream.secure.subject import own_certificate, read_certificate

KEY = ec.generate_private_key(ec.SECP256R1())
OIDS = x509.oid.NameOID
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


def attribute(oid, value, kind=_ASN1Type.UTF8String):
    return x509.NameAttribute(oid, value, kind, _validate=False)


def certificate(parts, ends=NOON + dt.timedelta(days=1)):
    """DER with a subject of these parts, each a list of attributes."""
    name = x509.Name([x509.RelativeDistinguishedName(part) for part in parts])
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 1, NOON, ends)
    return builder.sign(KEY, hashes.SHA256())


def subject(*parts):
    from cryptography.hazmat.primitives.serialization import Encoding

    return read_certificate(certificate(parts).public_bytes(Encoding.DER)).subject


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            [[(OIDS.COUNTRY_NAME, "DE")], [(OIDS.ORGANIZATION_NAME, "Mill")], [(OIDS.COMMON_NAME, "alice")]],
            "CN=alice,O=Mill,C=DE",
        ),
        ([[(OIDS.COMMON_NAME, 'a,b=c+d<e>f#g;h"i\\j')]], 'CN=a\\,b\\=c\\+d\\<e\\>f\\#g\\;h\\"i\\\\j'),
        ([[(OIDS.COMMON_NAME, "  both  ends ")]], "CN=\\ \\ both  ends\\ "),
        ([[(OIDS.COMMON_NAME, "alice\0")]], "CN=alice\\00"),
        ([[(OIDS.COMMON_NAME, "two\nlines")]], "CN=two\nlines"),
        ([[(OIDS.COMMON_NAME, "Zoë 雪")]], "CN=Zoë 雪"),
        ([[(OIDS.EMAIL_ADDRESS, "a@b")]], "1.2.840.113549.1.9.1=#0c03614062"),
        (
            [
                [(OIDS.STATE_OR_PROVINCE_NAME, "S")],
                [(OIDS.STREET_ADDRESS, "T")],
                [(OIDS.DOMAIN_COMPONENT, "d")],
                [(OIDS.USER_ID, "u")],
                [(OIDS.LOCALITY_NAME, "L")],
            ],
            "L=L,UID=u,DC=d,STREET=T,ST=S",
        ),
        ([[(OIDS.ORGANIZATIONAL_UNIT_NAME, "x"), (OIDS.COMMON_NAME, "y")]], "OU=x+CN=y"),
        ([], ""),
    ],
)
def test_subjects_are_written_as_java_does(parts, expected):
    found = subject(*([attribute(*pair) for pair in part] for part in parts))
    assert sorted(found.split("+")) == sorted(expected.split("+")) if "+CN" in expected else found == expected


def test_the_end_is_read_in_both_forms_of_time():
    from cryptography.hazmat.primitives.serialization import Encoding

    for year in (2024, 2049, 2050, 2120):
        ends = dt.datetime(year, 3, 4, 5, 6, 7, tzinfo=dt.UTC)
        der = certificate([], ends).public_bytes(Encoding.DER)
        assert read_certificate(der).not_after_s == int(ends.timestamp())


@pytest.mark.filterwarnings("ignore:Attribute's length")
def test_an_enormous_subject_is_refused():
    from cryptography.hazmat.primitives.serialization import Encoding

    for size, words in ((10_000, "the subject has"), (70_000, "the certificate has")):
        der = certificate([[attribute(OIDS.COMMON_NAME, "x" * size)]]).public_bytes(Encoding.DER)
        with pytest.raises(Rejected, match=words):
            read_certificate(der)


DER = __import__("ssl").PEM_cert_to_DER_cert(make_authority("Fuzz").certificate.decode())


@given(st.integers(0, len(DER) - 1), st.integers(0, 255), st.integers(0, len(DER)))
def test_bent_certificates_are_read_or_refused(at, byte, end):
    bent = bytearray(DER)
    bent[at] = byte
    for data in (bytes(bent), bytes(bent[:end])):
        try:
            read_certificate(data)
        except Rejected:
            pass


def test_a_chain_without_a_certificate_is_refused():
    with pytest.raises(Rejected):
        own_certificate(b"")
