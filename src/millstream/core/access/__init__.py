"""Access control as Kafka's StandardAuthorizer decides it: entries, patterns of names, and the question "may X do Y?".

``entry`` has the vocabulary (resource types, operations, entries), ``rules`` the index of all entries and the decision.
Pure: no clock, no log; what a connection keeps of the answers is ``kafka.access``.
"""
