"""TLS: key material, contexts, sockets, and the names in certificates.

::

    TlsOptions ──read──► Material ──► ssl.SSLContext ──► TlsSocket (reactors) or ssl.SSLSocket (threads, clients)
    (settings)           (PEM texts)                          └─ certificate ─► Subject ─► principal

``options`` says what is set, ``material`` reads it from files or takes it inline, ``contexts`` makes
OpenSSL contexts of it, ``tls_socket`` is TLS on a socket that does not block, ``subject`` reads a certificate's subject
and its end, ``principals`` makes names of users from subjects, ``words`` says what a failed handshake means.

The room promises: TLS 1.2 or newer, no tickets, no renegotiation, no compression. A private key is in memory only, in
no message, log or file of its own. Bad material is ``Rejected`` in words that name the file, before anything is
changed. What a peer sends is bounded before it is read. Absent: who may do what, passwords of users (``kafka``), and
waiting: a socket never blocks here.
"""
