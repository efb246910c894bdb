"""Files of properties are read as Kafka reads its own, and what is written reads back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.security import resolve
from millstream.config.errors import ConfigError
from millstream.config.properties_file import parse_properties, read_properties_file, write_properties

_AS_JAVA = r"""
# of Kafka's documentation
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  username="alice" \
  password="ab=c:d";
! another comment \
listeners = PLAINTEXT://:9092,\
            SSL://:9093
log.dirs /data
zookeeper.connect:a:2181
ssl.principal.mapping.rules=RULE:^CN=(.*?)\\.example$/$1/L,DEFAULT
empty=
a\=b\ c=\u00e9\t\ x
"""


def _read(text: str) -> dict[str, str | None]:
    return {name: value for _, name, value in parse_properties(text)}


def test_a_file_of_kafka_is_read_as_java_reads_it():
    assert _read(_AS_JAVA) == {
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="ab=c:d";',
        "listeners": "PLAINTEXT://:9092,SSL://:9093",
        "log.dirs": "/data",
        "zookeeper.connect": "a:2181",
        "ssl.principal.mapping.rules": r"RULE:^CN=(.*?)\.example$/$1/L,DEFAULT",
        "empty": "",
        "a=b c": "é\t x",
    }


def test_the_number_of_a_property_is_that_of_its_first_line():
    assert [number for number, _, _ in parse_properties(_AS_JAVA)] == [3, 7, 9, 10, 11, 12, 13]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_every_system_are_ends_and_no_others(end):
    text = f"a=1{end}b=2\\{end}   3{end}c=x\x0b\x85\u2028y{end}"
    assert _read(text) == {
        "a": "1",
        "b": "23",
        "c": "x\x0b\x85\u2028y",
    }


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_written_reads_back(found):
    assert _read(write_properties(found)) == found


@given(st.text(alphabet="ab\\=: #!\n\r\tu0"))
def test_any_text_is_read(text):
    assert all(number > 0 for number, _, _ in parse_properties(text))


def test_a_file_with_a_byte_order_mark_has_its_first_name(tmp_path):
    path = tmp_path / "client.properties"
    path.write_bytes(b"\xef\xbb\xbfsecurity.protocol=SSL\r\n")
    assert read_properties_file(str(path)) == [(1, "security.protocol", "SSL")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a=1\nsecret-word\n", "line 2 is no property"),
        (b"a=secret-word\n\na=2\n", "on lines 1 and 3"),
        (b"a=\xff\n", "not UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_without_a_word_of_its_values(tmp_path, content, said):
    path = tmp_path / "client.properties"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as refused:
        read_properties_file(str(path))
    assert "secret-word" not in str(refused.value)


def test_a_reference_into_a_file_reads_it_in_the_same_way(tmp_path):
    path = tmp_path / "secrets"
    path.write_text("first : one\npassword=a\\\\b\\\n  c\n")
    assert resolve(f"${{file:{path}:password}}") == "a\\bc"
