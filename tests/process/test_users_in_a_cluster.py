"""Users of a cluster: created at one broker, known to all, also after one was killed."""

import pytest

from millstream.testing import cluster
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from millstream.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from millstream.wire.sasl import SCRAM_SHA_256, salted_password
from raw_line import Line
from waits import until

pytestmark = pytest.mark.process


def socket_file(brokers, node):
    return Line(f"{brokers.brokers[node].data_dir}/admin.sock")


def users(brokers, node):
    with socket_file(brokers, node) as line:
        return [one.user for one in line.ask(DescribeUserScramCredentialsRequest(None)).results]


def test_every_broker_knows_a_user_that_was_created_at_one():
    salted = salted_password(SCRAM_SHA_256, "a-word-of-alice", b"salt", 4096)
    wanted = AlterUserScramCredentialsRequest([], [ScramCredentialUpsertion("alice", 1, 4096, b"salt", salted)])
    with cluster(3) as brokers:

        def created():
            with socket_file(brokers, 2) as line:
                return line.ask(wanted).results[0].error_code == 0

        until(created, "the feature level of users")
        for node in (1, 2, 3):
            until(lambda node=node: users(brokers, node) == ["alice"], f"the user on broker {node}")
        brokers.kill(1)
        brokers.restart(1)
        until(lambda: users(brokers, 1) == ["alice"], "the user after a restart")
