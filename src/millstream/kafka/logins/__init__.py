"""Logins on the listeners of one shard: who may send what before it has said who it is.

``gate`` is one connection's order of requests, ``logins`` what all connections of a shard share (users, limits,
deadlines), ``guard_link`` the way to the process that tests passwords.
"""
