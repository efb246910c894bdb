"""What every judge raises."""


class Violation(AssertionError):
    """A promise was broken."""
