"""One Kafka API per file, in folders by subject; each file has a function ``handle``.

``data`` produces, reads and describes partitions; ``groups`` and ``transactions`` ask the coordinators; ``admin``
changes and describes the cluster; ``events`` has the APIs of event topics. Code that several folders need is in
``kafka`` itself. The table of ``kafka.served`` says which file serves which API.
"""
