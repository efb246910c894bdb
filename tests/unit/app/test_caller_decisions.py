"""Callers over HTTP, as shard 0 decides: proofs, rights, and what the audit is told."""

import pytest

from millstream.admin.callers import Proof
from millstream.admin.routing import HttpError, Need
from millstream.app.http_callers import ADMIT, BrokerCallers, serve_callers
from millstream.core.access.entry import CLUSTER_NAME
from millstream.model.access import Operation, ResourceType
from millstream.secure.tokens.rules import Verdict

SEE = Need(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
CHANGE = Need(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)


class Shard:
    """Shard 0 without a broker: its control channel, its logins, its rights and its audit."""

    def __init__(self):
        self.audit = self
        self.told = []
        self.guards = 0
        serve_callers(self, self, self)

    def serve(self, name, handler):
        self.handler = {ADMIT: handler}[name]

    def ask(self, name, arguments, timeout_us):
        answers = []
        assert name == ADMIT and timeout_us > 0
        self.handler(arguments, answers.append)
        return answers[0]

    def need_guard(self):
        self.guards += 1

    def test_password(self, user, password, done):
        done(Verdict(user) if password == "right" else Verdict(reason="wrong"))

    def test_token(self, token, done, nonce=""):
        if nonce:
            done(Verdict("ann", 1000) if (token, nonce) == ("id", "n") else Verdict(reason="of another sign-in"))
        else:
            done(Verdict("svc", 1000) if token == "good" else Verdict(reason="expired"))

    def later(self, end):
        self.told.append("later")
        end()

    def succeeded_over_http(self, principal, host):
        self.told.append(f"in {principal} {host}" if principal else "in")

    def failed_over_http(self, host, why):
        self.told.append(f"{host}: {why}")

    def mark(self, principal):
        return f"of {principal}"

    def permits(self, principal, host, operation, resource, name):
        assert (host, resource, name) == ("h", ResourceType.CLUSTER, CLUSTER_NAME)
        return operation is Operation.DESCRIBE and principal != "User:ANONYMOUS"

    def refused(self, *facts):
        self.told.append(facts)


@pytest.fixture
def shard():
    return Shard()


@pytest.fixture
def callers(shard):
    return BrokerCallers(shard.ask, shard.need_guard)


@pytest.mark.parametrize(
    ("proof", "principal", "guards"),
    [
        (Proof("alice", "right"), "User:alice", 1),
        (Proof(token="good"), "User:svc", 1),
        (Proof(principal="User:CN=a"), "User:CN=a", 0),
    ],
)
def test_a_caller_is_known_by_its_proof(shard, callers, proof, principal, guards):
    caller = callers.admit(proof, "h", [SEE])
    assert caller.principal == principal
    assert shard.guards == guards
    assert caller.allowed([SEE, CHANGE]) == [True, False]
    assert not [one for one in shard.told if isinstance(one, tuple)]


@pytest.mark.parametrize(("proof", "why"), [(Proof("alice", "guess"), "h: wrong"), (Proof(token="old"), "h: expired")])
def test_a_wrong_proof_is_answered_later_and_without_a_reason(shard, callers, proof, why):
    with pytest.raises(HttpError) as refusal:
        callers.admit(proof, "h", [SEE])
    assert (refusal.value.status, refusal.value.message) == (401, "the login failed")
    assert shard.told == [why, "later"]


def test_a_login_that_is_kept_is_recorded_and_holds_as_long_as_its_token(shard, callers):
    kept = callers.log_in(Proof("alice", "right"), "h")
    assert kept == ("User:alice", "of User:alice", 0)
    assert callers.log_in(Proof(token="good"), "h") == ("User:svc", "of User:svc", 1000)
    assert callers.log_in(Proof("alice", "guess"), "h") is None
    assert shard.told == ["in User:alice h", "in User:svc h", "h: wrong", "later"]
    assert callers.remember(*kept[:2], "h").principal == "User:alice"
    assert callers.remember("User:alice", "of another", "h") is None


def test_a_right_that_is_missing_is_named_and_recorded(shard, callers):
    with pytest.raises(HttpError) as refusal:
        callers.admit(Proof("alice", "right"), "h", [CHANGE])
    assert (refusal.value.status, refusal.value.name) == (403, "CLUSTER_AUTHORIZATION_FAILED")
    assert shard.told == ["in", ("User:alice", "h", "HTTP", "CLUSTER_AUTHORIZATION_FAILED", CLUSTER_NAME)]
    with pytest.raises(HttpError) as refusal:
        callers.admit(Proof(), "h", [SEE])
    assert (refusal.value.status, refusal.value.headers[0][0]) == (401, "WWW-Authenticate")
