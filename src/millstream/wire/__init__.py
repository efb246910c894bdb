"""Kafka's wire format: message declarations, their codec, record batches and compression. No sockets, no state.

A message is declared once, in ``messages``, with the vocabulary of ``schema``; ``decoding`` and ``encoding`` generate
its codec for each version, and ``codec`` is how one calls it. ``apis`` lists the requests. ``batch`` and ``records``
are the format of record batches, ``inspection`` their checks. ``produce_again``, ``produce_chain`` and
``packed_fetch`` are faster ways for the two requests that carry data.
"""
