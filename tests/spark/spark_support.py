"""What the tests on Spark have in common beside their fixtures."""

BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a virtual machine that lives for minutes: compile quickly, and collect garbage without threads of its own."""

SMALL_SEGMENTS = 1 << 20  # the least that a topic may have
