"""The console: pages about a Kafka cluster, for people.

::

    browser ──► waitress ──► guard (Host, Origin, token) ──► a page ──► facts, messages ──► client ──► brokers

``application.create`` makes the WSGI application. It speaks to any cluster with Kafka's API as an ordinary client,
under the identity of the caller, and keeps nothing on disk. ``serve`` runs it alone, as ``millstream console`` does.

Promises. A page works without its script. What clients choose (names, keys, values, headers, error texts of brokers) is
escaped wherever it stands, and the content policy forbids every script and style that is not the console's own. A page
reads a bounded amount: lists are cut into pages, messages come in steps of at most 500 records, 10 MiB and 5 seconds. A
broker that does not answer is a page that says so within ``REQUEST_TIMEOUT_S``; the next request connects again. A
crash of the console loses logins and the short history of charts, nothing else.
"""
