"""Which test classes of Kafka's jars start a cluster, read from the bytes of their class files.

A class starts a cluster if an annotation of it asks for one, if it names one of the harnesses that start brokers, or if
a class above it does. Only the constants of a class file are read: its names, its annotations, and its parent.
"""

import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ANNOTATIONS: Final = {
    f"Lorg/apache/kafka/common/test/api/{name};" for name in ("ClusterTest", "ClusterTests", "ClusterTemplate")
}
HARNESSES: Final = {
    "org/apache/kafka/common/test/KafkaClusterTestKit$Builder",
    "org/apache/kafka/streams/integration/utils/EmbeddedKafkaCluster",
    "org/apache/kafka/connect/util/clusters/EmbeddedConnectCluster$Builder",
    "org/apache/kafka/connect/util/clusters/EmbeddedKafkaCluster",
    "kafka/server/QuorumTestHarness",
}
TESTS: Final = ANNOTATIONS | {"Lorg/junit/jupiter/api/Test;", "Lorg/junit/jupiter/params/ParameterizedTest;"}
ABSTRACT: Final = 0x0400
WIDTHS: Final = {
    3: 4,
    4: 4,
    5: 8,
    6: 8,
    7: 2,
    8: 2,
    9: 4,
    10: 4,
    11: 4,
    12: 4,
    15: 3,
    16: 2,
    17: 4,
    18: 4,
    19: 2,
    20: 2,
}
"""Tag of a constant → its bytes behind the tag. Text (tag 1) has a length of its own."""


@dataclass(frozen=True)
class ClassFile:
    """What is read of a class: names as in class files, with slashes."""

    name: str
    parent: str
    abstract: bool
    texts: frozenset[str]
    """Every text among the constants: names, descriptors and strings."""


def parse(data: bytes) -> ClassFile:
    """Raises ``ValueError`` or ``struct.error`` if ``data`` is no class file."""
    magic, _, count = struct.unpack_from(">IIH", data)
    if magic != 0xCAFEBABE:
        raise ValueError("no class file")
    texts: dict[int, str] = {}
    classes: dict[int, int] = {}
    at, index = 10, 1
    while index < count:
        tag = data[at]
        if tag == 1:
            (length,) = struct.unpack_from(">H", data, at + 1)
            texts[index] = data[at + 3 : at + 3 + length].decode("utf-8", errors="replace")
            at += 3 + length
        else:
            if tag == 7:
                (classes[index],) = struct.unpack_from(">H", data, at + 1)
            at += 1 + WIDTHS[tag]
        index += 2 if tag in (5, 6) else 1
    flags, own, parent = struct.unpack_from(">HHH", data, at)
    return ClassFile(
        texts[classes[own]],
        texts[classes[parent]] if parent else "",
        bool(flags & ABSTRACT),
        frozenset(texts.values()),
    )


def starters(jars: Iterable[Path]) -> dict[str, bool]:
    """Test classes that start a cluster, with dots → whether only those of its tests do that have an annotation.
    Classes within other classes belong to those.
    """
    known = {found.name: found for jar in jars for found in _classes(jar)}
    return {
        name.replace("/", "."): _any(known, name, ANNOTATIONS)
        for name, one in known.items()
        if not one.abstract and "$" not in name and _any(known, name, TESTS) and _starts(known, name)
    }


def _classes(jar: Path) -> Iterator[ClassFile]:
    with zipfile.ZipFile(jar) as content:
        for entry in content.namelist():
            if entry.endswith(".class") and not entry.endswith(("module-info.class", "package-info.class")):
                yield parse(content.read(entry))


def _starts(known: Mapping[str, ClassFile], name: str) -> bool:
    """The harnesses themselves name each other; a test of theirs is a test of Kafka's test code."""
    return _any(known, name, ANNOTATIONS | HARNESSES)


def _any(known: Mapping[str, ClassFile], name: str, texts: set[str]) -> bool:
    """Whether a class or one above it has one of the texts."""
    while name in known:
        if not texts.isdisjoint(known[name].texts):
            return True
        name = known[name].parent
    return False
