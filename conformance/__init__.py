"""Other people's test suites, unmodified, against this broker: ``make conformance``.

A suite is fetched from its package registry into ``~/.cache/millstream`` on first use and never committed. What is
committed is what we hold ourselves to: ``<suite>.txt`` names the tests that must pass, and only grows; the tests that a
suite has and that are not run stand in ``<suite>.left-out.txt`` with the reason; ``kafka-<version>.json`` is how a real
Apache Kafka did in the same suites, so that a failure is known to be ours.
"""
