"""Users, access control entries and quotas in the controller's state, and the commands that change them.

A user exists as long as it has a verifier (``wire.sasl``). Passwords are never here; the verifiers and the cluster's
secrets are, so the controller's files are readable by the broker's own user only, and nothing that prints a state
shows them.

``revision`` counts the changes, so that answers that were kept can be recognized as out of date. It is
not part of the stored state: two brokers may count differently.
"""

import msgspec

from millstream.core.access.entry import AclEntry
from millstream.core.access.rules import Rules
from millstream.core.controller.commands import AclsCreated, AclsDeleted, SecretSet, UserRemoved, UserSet
from millstream.core.quota.limits import Entity, Limits
from millstream.errors import Corruption
from millstream.wire.sasl import Verifier


class SecurityState:
    """Users by (name, number of the SCRAM mechanism), secrets by name, access control, quotas. Part of
    ``ControllerState``. ``limits`` counts its revisions itself.
    """

    __slots__ = ("iterations", "limits", "revision", "rules", "secrets", "users")

    def __init__(self) -> None:
        self.users: dict[tuple[str, int], Verifier] = {}
        self.secrets: dict[str, bytes] = {}
        self.iterations: dict[int, dict[int, int]] = {}
        """By mechanism: how many verifiers have a number of iterations. Derived from ``users``."""
        self.rules = Rules()
        self.limits = Limits()
        self.revision = 0

    @property
    def is_empty(self) -> bool:
        return not (self.users or self.secrets or self.rules.entries or self.limits.entities)

    def copy(self) -> "SecurityState":
        other = SecurityState()
        other.users = dict(self.users)
        other.secrets = dict(self.secrets)
        other.iterations = {mechanism: dict(counts) for mechanism, counts in self.iterations.items()}
        other.rules = self.rules.copy()
        other.limits = self.limits.copy()
        other.revision = self.revision
        return other

    def set_user(self, command: UserSet) -> None:
        self._count(command.mechanism, self.users.get((command.user, command.mechanism)), -1)
        self.users[command.user, command.mechanism] = command.verifier
        self._count(command.mechanism, command.verifier, 1)
        self.revision += 1

    def remove_user(self, command: UserRemoved) -> None:
        verifier = self.users.pop((command.user, command.mechanism), None)
        if verifier is None:
            raise Corruption(f"the controller's log contradicts itself: user {command.user} has no such credential")
        self._count(command.mechanism, verifier, -1)
        self.revision += 1

    def set_secret(self, command: SecretSet) -> None:
        self.secrets[command.name] = command.value
        self.revision += 1

    def create_acls(self, command: AclsCreated) -> None:
        for entry in command.entries:
            self.rules.add(entry)
        self.revision += 1

    def delete_acls(self, command: AclsDeleted) -> None:
        for entry in command.entries:
            if entry not in self.rules.entries:
                raise Corruption("the controller's log contradicts itself: an access control entry does not exist")
            self.rules.remove(entry)
        self.revision += 1

    def _count(self, mechanism: int, verifier: Verifier | None, by: int) -> None:
        if verifier is None:
            return
        counts = self.iterations.setdefault(mechanism, {})
        counts[verifier.iterations] = counts.get(verifier.iterations, 0) + by
        if not counts[verifier.iterations]:
            del counts[verifier.iterations]

    def stored(self) -> "StoredSecurity | None":
        """The stored form; None without content."""
        if self.is_empty:
            return None
        users = [(name, mechanism, verifier) for (name, mechanism), verifier in sorted(self.users.items())]
        quotas = [
            (entity, dict(sorted(values.items())))
            for entity, values in sorted(self.limits.entities.items(), key=lambda item: repr(item[0]))
        ]
        return StoredSecurity(users, dict(sorted(self.secrets.items())), list(self.rules.entries), quotas)


class StoredSecurity(msgspec.Struct, frozen=True):
    """Users, secrets, access control entries and quotas in a snapshot: sorted, but the entries in their order."""

    users: list[tuple[str, int, Verifier]] = []
    secrets: dict[str, bytes] = {}
    acls: list[AclEntry] = []
    quotas: list[tuple[Entity, dict[str, float]]] = []

    def restored(self) -> SecurityState:
        """The state that was stored."""
        state = SecurityState()
        for user, mechanism, verifier in self.users:
            state.set_user(UserSet(user=user, mechanism=mechanism, verifier=verifier))
        state.secrets = self.secrets
        for entry in self.acls:
            state.rules.add(entry)
        state.limits = Limits(dict(self.quotas))
        return state
