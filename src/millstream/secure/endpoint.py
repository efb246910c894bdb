"""The accepting side of one listener: context and rules, made of credentials that can be handed to a process."""

import ssl

import msgspec

from millstream.secure.contexts import server_context
from millstream.secure.material import Material
from millstream.secure.options import TlsOptions
from millstream.secure.principals import DEFAULT, PrincipalRules


class ServerTls:
    """What a handshake of one listener needs. Immutable; connections keep the one that they began with."""

    def __init__(self, context: ssl.SSLContext, rules: PrincipalRules, client_auth: str) -> None:
        self.context = context
        self.rules = rules
        self.client_auth = client_auth


class Credentials(msgspec.Struct, frozen=True):
    """Everything that a listener's TLS is made of."""

    options: TlsOptions
    material: Material
    rules: str = DEFAULT

    def server(self) -> ServerTls:
        """The accepting side.

        Raises:
            Rejected: something cannot be used.
        """
        return ServerTls(
            server_context(self.material, self.options), PrincipalRules(self.rules), self.options.client_auth
        )
