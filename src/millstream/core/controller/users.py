"""Decisions about users: set and remove SCRAM verifiers (KIP-554).

Each user of a request has a result of its own. Codes and words are Kafka's: a user that stands twice in a request gets
DUPLICATE_RESOURCE for all its changes, an unknown mechanism UNSUPPORTED_SASL_MECHANISM, too few or too many iterations
UNACCEPTABLE_CREDENTIAL. The first user creates the secret from which decoys are made (``core.sasl``).
"""

from collections import Counter
from typing import Final

from millstream.core.controller.commands import (
    SECURING,
    AnyCommand,
    SecretSet,
    UserRemoved,
    UserSet,
)
from millstream.core.controller.requests import AlterUsers, Result, SetUser
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.sasl import ITERATIONS_MAX, ITERATIONS_MIN, NAME_CHARACTERS_MAX, SCRAM_BY_NUMBER

DECOYS: Final = "decoys"
"""Name of the secret that verifiers of users that do not exist are made from."""

USERS_MAX: Final = 100_000
"""Verifiers of a cluster, so that the state fits into a snapshot and into the memory of each shard: 20 MiB."""


def decide_alter_users(state: ControllerState, request: AlterUsers, rules: Rules) -> Decision:
    """Make the changes that can be made."""
    names = [change.user for change in (*request.removals, *request.sets)]
    twice = {name for name, count in Counter(names).items() if count > 1}
    results: dict[str, Result] = {}
    commands: list[AnyCommand] = []
    for change in (*request.removals, *request.sets):
        try:
            check_level(state)
            if change.user in twice:
                raise Rejected(
                    "A user credential cannot be altered twice in the same request", ErrorCode.DUPLICATE_RESOURCE
                )
            _check(state, change.user, change.mechanism)
            if isinstance(change, SetUser):
                _check_verifier(change)
                verifier = change.verifier
                commands.append(UserSet(user=change.user, mechanism=change.mechanism, verifier=verifier))
            elif (change.user, change.mechanism) in state.security.users:
                commands.append(UserRemoved(user=change.user, mechanism=change.mechanism))
            else:
                raise Rejected("Attempt to delete a user credential that does not exist", ErrorCode.RESOURCE_NOT_FOUND)
            results[change.user] = Result(name=change.user)
        except Rejected as error:
            results[change.user] = Result(error.code, error.message, change.user)
    if commands and DECOYS not in state.security.secrets:
        commands.insert(0, SecretSet(name=DECOYS, value=rules.new_topic_id() + rules.new_topic_id()))
    return Decision(tuple(results.values()), tuple(commands))


def check_level(state: ControllerState) -> None:
    """Raises Rejected in a cluster with brokers that do not understand users."""
    if state.registry.brokers and state.feature_level < SECURING:
        raise Rejected(
            f"Users and access need feature level {SECURING}, the cluster has {state.feature_level}: upgrade all "
            "brokers first",
            ErrorCode.UNSUPPORTED_VERSION,
        )


def _check(state: ControllerState, user: str, mechanism: int) -> None:
    if not user:
        raise Rejected("Username must not be empty", ErrorCode.UNACCEPTABLE_CREDENTIAL)
    if len(user) > NAME_CHARACTERS_MAX or not user.isprintable():
        raise Rejected(
            f"Username must be printable and have at most {NAME_CHARACTERS_MAX} characters",
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
        )
    if mechanism not in SCRAM_BY_NUMBER:
        raise Rejected("Unknown SCRAM mechanism", ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    if len(state.security.users) >= USERS_MAX and (user, mechanism) not in state.security.users:
        raise Rejected(f"There are {USERS_MAX} credentials already", ErrorCode.UNACCEPTABLE_CREDENTIAL)


def _check_verifier(change: SetUser) -> None:
    iterations, size = change.verifier.iterations, SCRAM_BY_NUMBER[change.mechanism].size
    if iterations < ITERATIONS_MIN:
        raise Rejected("Too few iterations", ErrorCode.UNACCEPTABLE_CREDENTIAL)
    if iterations > ITERATIONS_MAX:
        raise Rejected("Too many iterations", ErrorCode.UNACCEPTABLE_CREDENTIAL)
    if not change.verifier.salt or len(change.verifier.stored_key) != size:
        raise Rejected("The salt or the salted password has no acceptable length", ErrorCode.UNACCEPTABLE_CREDENTIAL)
