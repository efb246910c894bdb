"""JSON web tokens: who a token is about, which keys may have signed it, and where these keys come from.

::

    a broker's settings ──► TokenRules ──► verify(token, keys, rules, now) ──► Verdict
    jwks.endpoint.url   ──► KeySource (a thread) ──► KeySet ──┘

``rules`` is what a broker expects of a token, ``keys`` a set of public keys, ``verify`` the pure test of one token,
``source`` the thread that reads keys from a file or over https and keeps the last good ones, ``issuer`` the client that
gets tokens for programs of ours.

Tests of tokens run in the guard process (``app.guard``), because they take up to a millisecond of CPU and their text
comes from anybody. ``keys`` and ``verify`` need the packages of the extra ``security``.
"""
