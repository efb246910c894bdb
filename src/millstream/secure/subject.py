r"""Subject and end of a certificate, by a bounded reader of DER of our own (X.690).

A certificate comes from anybody who can open a connection, if only the handshake takes it. The reader walks to the two
fields that it needs, takes definite lengths within its bounds only, and keeps nothing else.

The subject is written as Java's ``X500Principal.getName()`` does (RFC 2253), because access rules of Kafka name
principals so: the last part first, ``,=+<>#;"\`` escaped anywhere, spaces at both ends escaped, NUL as ``\00``, types
that are not known and values that are no text as ``#`` and hexadecimal DER. Several values of one part are joined with
``+``.
"""

import datetime as dt
import ssl
from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.errors import Rejected

CERTIFICATE_BYTES_MAX: Final = 64 << 10
SUBJECT_BYTES_MAX: Final = 8 << 10

_SEQUENCE, _SET, _OID, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x31, 0x06, 0x17, 0x18, 0xA0
_TEXTS: Final = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E))
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, UniversalString, BMPString."""
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_BLANK: Final = " \r"


class CertificateFacts(NamedTuple):
    """What is read of a certificate."""

    subject: str
    """RFC 2253, as Java writes it; empty for an empty subject."""

    not_after_s: int
    """When it ends, seconds since 1970."""


class _Value(NamedTuple):
    tag: int
    body: memoryview
    whole: memoryview


def read_certificate(der: bytes) -> CertificateFacts:
    """Subject and end of a certificate.

    Raises:
        Rejected: it is not DER, or beyond the bounds.
    """
    if len(der) > CERTIFICATE_BYTES_MAX:
        raise Rejected(f"the certificate has {len(der)} bytes, expected at most {CERTIFICATE_BYTES_MAX}")
    certificate = _only(memoryview(der), _SEQUENCE)
    body = next(_values(certificate))
    fields = list(_values(_expect(body, _SEQUENCE)))
    if fields and fields[0].tag == _VERSION:
        del fields[0]
    if len(fields) < 5:
        raise _broken()
    _, _, _, validity, subject = fields[:5]
    if len(subject.whole) > SUBJECT_BYTES_MAX:
        raise Rejected(f"the subject has {len(subject.whole)} bytes, expected at most {SUBJECT_BYTES_MAX}")
    times = list(_values(_expect(validity, _SEQUENCE)))
    if len(times) != 2:
        raise _broken()
    return CertificateFacts(_name(_expect(subject, _SEQUENCE)), _seconds(times[1]))


def _broken() -> Rejected:
    return Rejected("the certificate is not valid DER")


def _values(data: memoryview) -> Iterator[_Value]:
    """The values that stand one after the other in ``data``."""
    at = 0
    while at < len(data):
        if len(data) - at < 2 or data[at] & 0x1F == 0x1F:
            raise _broken()
        length, begin = data[at + 1], at + 2
        if length >= 0x80:
            count = length & 0x7F
            if not 1 <= count <= 3 or begin + count > len(data):
                raise _broken()
            length = int.from_bytes(data[begin : begin + count], "big")
            begin += count
        end = begin + length
        if end > len(data):
            raise _broken()
        yield _Value(data[at], data[begin:end], data[at:end])
        at = end


def _only(data: memoryview, tag: int) -> memoryview:
    values = list(_values(data))
    if len(values) != 1:
        raise _broken()
    return _expect(values[0], tag)


def _expect(value: _Value, tag: int) -> memoryview:
    if value.tag != tag:
        raise _broken()
    return value.body


def _name(data: memoryview) -> str:
    parts = [_part(_expect(part, _SET)) for part in _values(data)]
    return ",".join(reversed(parts))


def _part(data: memoryview) -> str:
    pairs: list[str] = []
    for pair in _values(data):
        values = list(_values(_expect(pair, _SEQUENCE)))
        if len(values) != 2:
            raise _broken()
        oid = _oid(_expect(values[0], _OID))
        keyword = _KEYWORDS.get(oid)
        if keyword is None or values[1].tag not in _TEXTS:
            pairs.append(f"{keyword or oid}=#{values[1].whole.hex()}")
        else:
            pairs.append(f"{keyword}={_escaped(bytes(values[1].body).decode('utf-8', 'replace'))}")
    return "+".join(pairs)


def _oid(data: memoryview) -> str:
    if not len(data) or data[-1] & 0x80:
        raise _broken()
    numbers: list[int] = []
    number = 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if number >> 64:
            raise _broken()
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(text: str) -> str:
    whole = "".join(f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in text)
    bare = whole.lstrip(_BLANK)
    lead = len(whole) - len(bare)
    trail = len(bare) - len(bare.rstrip(_BLANK))
    ends = (whole[:lead], whole[len(whole) - trail :] if trail else "")
    before, after = ("".join(f"\\{each}" for each in end) for end in ends)
    return before + whole[lead : len(whole) - trail] + after


def _seconds(value: _Value) -> int:
    text = bytes(value.body).decode("ascii", "replace")
    if not text.endswith("Z"):
        raise _broken()
    try:
        if value.tag == _UTC_TIME:
            moment = dt.datetime.strptime(f"{text[:-1]}+0000", "%y%m%d%H%M%S%z")
            year = moment.year if moment.year < 2050 else moment.year - 100  # RFC 5280 §4.1.2.5.1
            moment = moment.replace(year=year)
        elif value.tag == _GENERALIZED_TIME:
            moment = dt.datetime.strptime(f"{text[:-1]}+0000", "%Y%m%d%H%M%S%z")
        else:
            raise _broken()
    except ValueError:
        raise _broken() from None
    return int(moment.timestamp())


def own_certificate(chain: bytes) -> CertificateFacts:
    """Subject and end of the first certificate of a PEM chain.

    Raises:
        Rejected: it is not DER.
    """
    begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    found = chain.partition(begin)[2].partition(end)
    first = begin + found[0] + end if found[1] else b""
    try:
        der = ssl.PEM_cert_to_DER_cert(first.decode("ascii"))
    except ValueError:
        raise _broken() from None
    return read_certificate(der)
