"""Every kind of topic × every ordered pair of operations, from seeds, with one judge that knows no operation.

::

    kinds        what kinds of topics there are       operations   what may happen to one, and what is refused
    faults       what may happen to one of three      world        verbs of clients
    single       one broker after another             broker       one life of it: the production code
    several      a cluster of three                   member       the same with a controller
    archiving    what both archive with               truth        what clients know
    judge        what must hold                       resting      what must end
    sharing      a share group of the topic
    history      one pair, played                     campaign     all of them
    planted      bugs put in on purpose

Parts that are well tested alone fail where two of them meet. A pair is a topic of a kind, two operations, rest, the
judge, a restart, the judge. What an operation is refused has to be listed with its reason; any other refusal is a
finding, and so are an exception, a line of the log that needs a person, and a partition that is not served.

With one broker every ordered pair is played, with three every one in which something happens to a broker. What is
absent: sockets; the invariants of Raft, which `sim.brokers` judges.
"""
