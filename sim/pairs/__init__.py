"""Every kind of topic × every ordered pair of operations, from seeds, with one judge that knows no operation.

::

    kinds        what kinds of topics there are       operations   what may happen to one, and what is refused
    world        one broker after another, verbs      broker       one life: the production code
    truth        what clients know                    judge        what must hold
    history      one pair, played                     planted      bugs put in on purpose

Parts that are well tested alone fail where two of them meet. A pair is a topic of a kind, two operations, rest, the
judge, a restart, the judge. What an operation is refused has to be listed with its reason; any other refusal is a
finding, and so are an exception, a line of the log that needs a person, and a partition that is not served.

What is absent: several brokers (`sim.brokers`, `sim.take_over`), sockets.
"""
