"""Apache Iceberg's own REST catalog server, on a port of this machine, for tests of tables in such a catalog.

It is the server that Iceberg tests its clients with (``iceberg-open-api``, ``RESTCatalogServer``), from Maven Central.
Its state is a SQLite file. It does what the embedded catalog leaves to the client: it checks what a commit requires,
writes the table's metadata and removes old ones.
"""

import importlib.util
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from conformance import tools
from millstream.config.ports import free_ports

FOLDER = "iceberg-rest-1.10.1-1"
"""Of the class path in the cache. The last number changes with ``pom.xml``."""

START_S = 240.0


def build(folder: Path) -> None:
    """Its class path."""
    tools.need("mvn", "java")
    pom = str(shutil.copy(Path(__file__).with_name("pom.xml"), folder))
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    tools.run(["mvn", "-q", "-B", "-f", pom, *goal], folder)


def class_path() -> str:
    """Its jars, and Hadoop's of PySpark."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None and spark.origin is not None, "the tests' environment has PySpark"
    hadoop = sorted((Path(spark.origin).parent / "jars").glob("hadoop-client-*.jar"))
    return ":".join([f"{tools.cached(FOLDER, build)}/*", *map(str, hadoop)])


class IcebergRestServer:
    """Serves at ``url`` while the block runs; its catalog and the tables' files are below ``place``."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self._place = place
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._environment = {
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
            "CATALOG_URI": f"jdbc:sqlite:file:{place}/catalog.db",
            "CATALOG_WAREHOUSE": f"file://{place}/warehouse",
            "CATALOG_REST_PORT": str(port),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", class_path()]
        with open(self._place / "log", "wb") as log:
            self._process = subprocess.Popen(
                [*command, "org.apache.iceberg.rest.RESTCatalogServer"],
                env={**os.environ, **self._environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait(self._process)
        except BaseException:
            tools.end_group(self._process)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None, "it has been started"
        tools.end_group(self._process)

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/v1/config", timeout=START_S).close()
            except urllib.error.URLError:
                said = (self._place / "log").read_text(encoding="utf-8", errors="replace")[-2000:]
                if process.poll() is not None or time.monotonic() > deadline:
                    raise tools.SuiteUnavailable(f"the REST catalog server does not answer: {said}") from None
                time.sleep(0.1)
            else:
                return
