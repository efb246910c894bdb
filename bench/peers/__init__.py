"""Real brokers of other people, started and stopped like ours, so that a figure has a neighbour and a failing test a
second witness.
"""
