"""Simulated brokers with two shared topics, whose batches lie in common objects: uploads, joins and sweeps.

::

    broker      a broker of `sim.archive` with the production's uploads, joins and sweeps
    history     a history from a seed: producers of both topics, readers, the deletion of one topic, a heal
    planted     bugs put in on purpose

The laws are those of `sim.archive`; F8 is judged whenever an object goes or is replaced. What is absent: logs in the
store, which `sim.take_over` has.
"""
