"""Logins by SASL, as the server sees them: pure exchanges of tokens.

An exchange takes the client's tokens one by one (``step``) and returns what is to be sent, until it is ``done`` or
raises ``LoginRefused``. It finds verifiers by a function, and gets its nonce from outside: nothing here asks a clock or
a source of randomness. An exchange that was refused, or is done, takes no more tokens.

**Unknown users** look like known ones: they have a verifier like others (``decoy``), which no password opens, with a
salt that stays the same from login to login and from broker to broker. The same functions run for both.
"""
