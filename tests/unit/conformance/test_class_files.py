"""Test classes that start a cluster are found in jars by the constants of their class files."""

import struct
import zipfile

import pytest
from conformance.class_files import parse, starters

ASKS = "Lorg/apache/kafka/common/test/api/ClusterTest;"
TEST = "Lorg/junit/jupiter/api/Test;"
KIT = "org/apache/kafka/common/test/KafkaClusterTestKit$Builder"
PUBLIC, ABSTRACT = 0x21, 0x421


def class_file(name, *texts, parent="java/lang/Object", flags=PUBLIC):
    """A class file without members. A long constant stands before the texts: it takes two places."""
    constants = [struct.pack(">BH", 1, len(text.encode())) + text.encode() for text in (name, parent)]
    constants += [struct.pack(">BH", 7, 1), struct.pack(">BH", 7, 2), struct.pack(">Bq", 5, 77)]
    constants += [struct.pack(">BH", 1, len(text.encode())) + text.encode() for text in texts]
    head = struct.pack(">IHHH", 0xCAFEBABE, 0, 61, len(constants) + 2)
    return head + b"".join(constants) + struct.pack(">HHHHHHH", flags, 3, 4, 0, 0, 0, 0)


@pytest.fixture
def jar(tmp_path):
    def written(**classes):
        path = tmp_path / "a-test.jar"
        with zipfile.ZipFile(path, "w") as content:
            content.writestr("module-info.class", b"not read")
            for name, data in classes.items():
                content.writestr(f"k/{name}.class", data)
        return starters([path])

    return written


def test_a_class_is_read_with_its_parent():
    found = parse(class_file("k/A", ASKS, parent="k/B", flags=ABSTRACT))
    assert (found.name, found.parent, found.abstract) == ("k/A", "k/B", True)
    assert ASKS in found.texts


def test_what_is_no_class_file_is_refused():
    with pytest.raises(ValueError, match="no class file"):
        parse(bytes(32))


def test_an_annotation_or_a_harness_makes_a_starter(jar):
    found = jar(
        Asks=class_file("k/Asks", ASKS),
        Kit=class_file("k/Kit", TEST, KIT),
        Unit=class_file("k/Unit", TEST),
        NoTest=class_file("k/NoTest", KIT),
    )
    assert found == {"k.Asks": True, "k.Kit": False}


def test_a_class_starts_what_its_parent_starts(jar):
    found = jar(
        Base=class_file("k/Base", KIT, flags=ABSTRACT),
        Tests=class_file("k/Tests", TEST, parent="k/Base"),
        Below=class_file("k/Below", parent="k/Tests"),
        **{"Below$1": class_file("k/Below$1", parent="k/Tests")},
    )
    assert found == {"k.Tests": False, "k.Below": False}
