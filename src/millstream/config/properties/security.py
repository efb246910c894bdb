"""Settings of security: TLS on listeners."""

from __future__ import annotations

from typing import Final

from millstream.config.forms import Choice, Choices, Text, UnsupportedValue, Words
from millstream.config.property import Property

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"

_OF_LISTENERS: Final = "For one listener: `listener.name.NAME.` before the name."
_STORES: Final = ("PEM", "PKCS12")


class StoreType(Choice):
    """Format of a key store. Java's own is refused with the command that converts it."""

    def __init__(self) -> None:
        super().__init__(*_STORES)

    def read_plain(self, text: str) -> str:
        word = text.strip().upper()
        if word == "JKS":
            raise UnsupportedValue(
                "only Java reads its key stores; convert it with keytool -importkeystore -srckeystore FILE "
                "-destkeystore FILE.p12 -deststoretype PKCS12"
            )
        return super().read_plain(word)


class Suites(Words):
    """Cipher suites, with commas; may be empty."""

    def accepts_words(self, words: tuple[str, ...]) -> bool:
        return all(word.replace("-", "").replace("_", "").isalnum() for word in words)

    def expected(self) -> str:
        return "names of cipher suites with commas, such as TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"


_OPENSSL: Final = "TLS is OpenSSL's here, and no provider of Java is asked."


def _of_java(name: str, default: str = "") -> Property[str]:
    text = Text("a name that Java knows")
    return Property(name, text, default, doc=f"No effect: {_OPENSSL}", per_listener=True, effect=False)


def _secret(name: str, what: str) -> Property[str]:
    return Property(name, Text(what), "", doc=f"{what[0].upper()}{what[1:]}.", sensitive=True, per_listener=True)


class SecurityProperties:
    """Key material and rules of listeners with TLS."""

    insecure_listeners = Property(
        "insecure.listeners",
        Choice("refuse", "allow"),
        "refuse",
        doc="Whether the broker starts with an address that other machines reach without a certificate or a login of "
        "the client, or in clear. Allowed ones are named in the log at the start.",
    )
    http_security_protocol = Property(
        "http.security.protocol",
        Choice(PLAINTEXT, SSL),
        PLAINTEXT,
        doc="Whether the HTTP port speaks TLS (SSL). Its key material is that of `listener.name.http.ssl.…`, else "
        "that of `ssl.…`.",
    )
    peer_security_protocol = Property(
        "peer.security.protocol",
        Choice(PLAINTEXT, SSL),
        PLAINTEXT,
        doc="Whether brokers speak TLS to each other (SSL), each with a certificate: the same value on every broker. "
        "Key and authority are those of `listener.name.peer.ssl.…` alone, so that no certificate of a client is one of "
        "a broker.",
    )
    ssl_keystore_type = Property(
        "ssl.keystore.type",
        StoreType(),
        "PEM",
        doc=f"Format of `ssl.keystore.location`. PKCS12 needs the extra `security`. {_OF_LISTENERS}",
        per_listener=True,
    )
    ssl_keystore_location = Property(
        "ssl.keystore.location",
        Text("the path of a file"),
        "",
        doc="File with the private key and the certificate chain of this broker. It is read again when it changes, "
        f"within ten seconds. {_OF_LISTENERS}",
        example="/etc/millstream/broker.pem",
        per_listener=True,
    )
    ssl_keystore_password = _secret("ssl.keystore.password", "password of a PKCS12 file")
    ssl_key_password = _secret("ssl.key.password", "password of an encrypted private key in PEM")
    ssl_keystore_key = _secret("ssl.keystore.key", "the private key itself, PEM (PKCS#8), in place of a file")
    ssl_keystore_certificate_chain = Property(
        "ssl.keystore.certificate.chain",
        Text("PEM certificates"),
        "",
        doc=f"The certificate and its intermediates themselves, PEM, in place of a file. {_OF_LISTENERS}",
        per_listener=True,
    )
    ssl_truststore_type = Property(
        "ssl.truststore.type",
        StoreType(),
        "PEM",
        doc=f"Format of `ssl.truststore.location`. {_OF_LISTENERS}",
        per_listener=True,
    )
    ssl_truststore_location = Property(
        "ssl.truststore.location",
        Text("the path of a file"),
        "",
        doc="File with the certificates of the authorities whose clients are taken. It is read again when it "
        f"changes, within ten seconds. {_OF_LISTENERS}",
        example="/etc/millstream/ca.pem",
        per_listener=True,
    )
    ssl_truststore_password = _secret("ssl.truststore.password", "password of a PKCS12 trust store")
    ssl_truststore_certificates = Property(
        "ssl.truststore.certificates",
        Text("PEM certificates"),
        "",
        doc=f"The certificates of authorities themselves, PEM, in place of a file. {_OF_LISTENERS}",
        per_listener=True,
    )
    ssl_client_auth = Property(
        "ssl.client.auth",
        Choice("none", "requested", "required"),
        "none",
        doc="Whether clients show a certificate: not asked for one, asked (a client without one is "
        f"`User:ANONYMOUS`), or refused without one. {_OF_LISTENERS}",
        per_listener=True,
    )
    ssl_enabled_protocols = Property(
        "ssl.enabled.protocols",
        Choices("TLSv1.2", "TLSv1.3"),
        ("TLSv1.2", "TLSv1.3"),
        doc=f"Versions of TLS that are spoken. {_OF_LISTENERS}",
        per_listener=True,
    )
    ssl_cipher_suites = Property(
        "ssl.cipher.suites",
        Suites(),
        (),
        doc="Cipher suites that are taken, as IANA or OpenSSL names them; those of TLS 1.3 all or none. "
        f"{_OF_LISTENERS}",
        default_doc="OpenSSL's choice",
        example="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        per_listener=True,
    )
    ssl_principal_mapping_rules = Property(
        "ssl.principal.mapping.rules",
        Text("RULE:pattern/replacement/[LU] or DEFAULT, several with commas"),
        "DEFAULT",
        doc="How the subject of a client's certificate becomes a user's name. The first rule whose pattern (RE2) "
        f"matches the whole subject decides; DEFAULT takes the subject as it is. {_OF_LISTENERS}",
        example="RULE:^CN=(.*?),.*$/$1/L,DEFAULT",
        per_listener=True,
    )
    ssl_protocol = _of_java("ssl.protocol", "TLSv1.3")
    ssl_provider = _of_java("ssl.provider")
    ssl_keymanager_algorithm = _of_java("ssl.keymanager.algorithm", "SunX509")
    ssl_trustmanager_algorithm = _of_java("ssl.trustmanager.algorithm", "PKIX")
    ssl_secure_random_implementation = _of_java("ssl.secure.random.implementation")
    ssl_endpoint_identification_algorithm = Property(
        "ssl.endpoint.identification.algorithm",
        Text("https or nothing"),
        "https",
        doc="No effect: a broker that dials another one always checks the name in its certificate.",
        per_listener=True,
        effect=False,
    )
    security_inter_broker_protocol = Property(
        "security.inter.broker.protocol",
        Choice(
            PLAINTEXT,
            refused=dict.fromkeys(
                (SSL, "SASL_SSL", "SASL_PLAINTEXT"),
                "brokers reach each other at peer.listen, not at a listener of clients; set peer.security.protocol=SSL",
            ),
        ),
        PLAINTEXT,
        doc="No effect: brokers reach each other at `peer.listen`, and `peer.security.protocol` encrypts that.",
        effect=False,
    )
