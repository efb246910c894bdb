"""Names of the console's cookies.

A browser sends the cookies of a host to each of its ports. Brokers on one machine, and consoles beside them, would
take each other's logins and forms away, so a name ends with the port that the browser asked.
"""

from typing import Final

from millstream.config.urls import split_authority

LOGIN: Final = "millstream-login"
"""A login at a broker."""
SESSION: Final = "millstream-console"
"""Token of forms, what the next page says, and the login of a console of its own."""
FILTERS: Final = "millstream-filters"
"""Filters that the visitor has saved."""
SIGN_IN: Final = "millstream-sign-in"
"""An unfinished sign-in at an OpenID provider."""


def name_of_cookie(kind: str, host: str) -> str:
    """The name of a cookie for requests with this ``Host`` header."""
    port = split_authority(host)[1]
    return f"{kind}-{port}" if port.isascii() and port.isdigit() else kind
