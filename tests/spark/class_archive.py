"""Spark's Java classes in a file: drivers that tests start and kill come up sooner.

python tests/spark/class_archive.py      makes the file, unless it is there; `make test-spark` does that first

It is the product's archive (``millstream.spark.class_archive``) for virtual machines with brief options, in the
environment, and so it goes with it. Without the file all tests run as well. On two busy cores a virtual machine took
3.8 CPU-seconds with it to the first query, 7.9 without it, and 13.7 with Java's own settings.
"""

import sys
from pathlib import Path

BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a virtual machine that lives for minutes: compile quickly, and collect garbage without threads of its own."""


def archive():
    """Where the archive of this Java and this Spark is, or would be."""
    from millstream.spark.class_archive import archive_for
    from millstream.spark.java import find_java_home

    return archive_for(find_java_home(), Path(sys.prefix))


def java_options() -> str:
    """Options for every virtual machine of these tests: brief ones, and the archive if it is there."""
    from millstream.spark.class_archive import is_whole

    found = archive()
    # Whatever Java has to say about an archive goes to standard output, where tests read answers.
    return f"{BRIEF} {found.use()} -Xlog:disable" if found is not None and is_whole(found) else BRIEF


def make() -> None:
    """Run a session that stores what it loads."""
    from millstream.spark.class_archive import make

    found = archive()
    why = "no jars" if found is None else make(found, BRIEF)
    if why is not None:
        print(f"no archive of Spark's classes was made; tests go without it\n{why[-500:]}", file=sys.stderr)


if __name__ == "__main__":
    make()
