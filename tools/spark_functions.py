"""Names of Spark's built-in functions, from the class files of an installed PySpark; no Java runs.

``python tools/spark_functions.py`` writes them to ``src/millstream/pipeline/spark_functions.txt``, which ``pipeline
check`` reads. The registries of functions name them in string constants; a few other strings among those do no harm.
"""

import importlib.util
import re
import struct
import sys
import zipfile
from pathlib import Path

KEPT = Path(__file__).parents[1] / "src/millstream/pipeline/spark_functions.txt"
GRAMMAR = frozenset({"cast", "cube", "python_worker_logs", "rollup", "struct", "try_cast", "when"})
"""Functions that the parser knows, or whose name is in another class."""
_REGISTRY = re.compile(r"/analysis/(Table)?FunctionRegistry(Base)?\$?\.class$")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_WIDTHS = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
"""Bytes of an entry of a class file's constant pool after its tag (Java Virtual Machine Specification, 4.4)."""
_TEXT, _STRING, _WIDE = 1, 8, (5, 6)


def installed() -> frozenset[str]:
    """The names in the PySpark of this environment."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None, "PySpark is not installed"
    (jar,) = Path(found.origin).parent.glob("jars/spark-catalyst_*.jar")
    with zipfile.ZipFile(jar) as archive:
        classes = [archive.read(name) for name in archive.namelist() if _REGISTRY.search(name)]
    return GRAMMAR.union(text for data in classes for text in _strings(data) if _NAME.fullmatch(text))


def kept() -> frozenset[str]:
    return frozenset(KEPT.read_text().split())


def _strings(data: bytes) -> set[str]:
    """The string constants of a class file."""
    (count,) = struct.unpack_from(">H", data, 8)
    at, number = 10, 1
    texts: dict[int, str] = {}
    strings: list[int] = []
    while number < count:
        tag = data[at]
        if tag == _TEXT:
            (length,) = struct.unpack_from(">H", data, at + 1)
            texts[number] = data[at + 3 : at + 3 + length].decode("utf-8", "replace")
            at += 3 + length
        else:
            if tag == _STRING:
                strings += struct.unpack_from(">H", data, at + 1)
            at += 1 + _WIDTHS[tag]
        number += 2 if tag in _WIDE else 1
    return {texts[index] for index in strings}


if __name__ == "__main__":
    KEPT.write_text("".join(f"{name}\n" for name in sorted(installed())))
    sys.exit(0)
