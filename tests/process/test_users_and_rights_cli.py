"""``millstream user`` and ``millstream acl`` through the socket file, and that no password is shown anywhere."""

import json

import pytest

from millstream.config.properties.access import STANDARD_AUTHORIZER
from millstream.testing.process import Broker, BrokerFailed
from millstream.testing.stem import run_command
from waits import until

pytestmark = pytest.mark.process

PASSWORD = "a-word-for-carol-5519"


@pytest.fixture(scope="module")
def broker():
    with Broker(None, {"authorizer.class.name": STANDARD_AUTHORIZER}, shards=1) as started:
        yield started


def run(broker, *arguments, stdin=""):
    done = run_command(*arguments, "--data", broker.data_dir, stdin=stdin)
    assert PASSWORD not in done.stdout + done.stderr
    return done


def shown(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_user_is_created_altered_and_deleted(broker):
    made = run(broker, "user", "create", "carol", "--password-file", "-", stdin=f"{PASSWORD}\n")
    assert made.returncode == 0, made.stderr
    assert "User:carol" in made.stderr
    expected = {"user": "carol", "mechanism": "SCRAM-SHA-512", "iterations": 8192}
    assert shown(run(broker, "user", "list", "--json")) == [expected]
    again = run(broker, "user", "create", "carol", "--password-file", "-", stdin="x\n")
    assert again.returncode == 1 and "exists already" in again.stderr
    more = ["user", "alter", "carol", "--mechanism", "SCRAM-SHA-256", "--iterations", "4096", "--password-file", "-"]
    assert run(broker, *more, stdin=f"{PASSWORD}\n").returncode == 0
    assert len(shown(run(broker, "user", "describe", "carol", "--json"))) == 2
    assert run(broker, "user", "delete", "carol").returncode == 0
    gone = run(broker, "user", "describe", "carol")
    assert gone.returncode == 1 and "there is no user 'carol'" in gone.stderr
    assert PASSWORD not in broker.log_path.read_text()


def test_the_first_user_comes_from_a_file_once(tmp_path):
    secret = tmp_path / "first"
    secret.write_text(f"admin:{PASSWORD}\n")
    with Broker(None, env={"MILLSTREAM_BOOTSTRAP_USER_FILE": str(secret)}, shards=1) as first:

        def users():
            return [one["user"] for one in shown(run(first, "user", "list", "--json"))]

        until(lambda: users() == ["admin"], "the first user")
        secret.write_text(f"other:{PASSWORD}\n")
        first.stop()
        first.start()
        assert users() == ["admin"]
        assert PASSWORD not in first.log_path.read_text()
        secret.write_text("no password\n")
        first.stop()
        with pytest.raises(BrokerFailed, match="not NAME:PASSWORD"):
            first.start()


def test_a_password_is_not_taken_from_nowhere(broker):
    none = run(broker, "user", "create", "dave")
    assert none.returncode == 2 and "--password-file" in none.stderr
    empty = run(broker, "user", "create", "dave", "--password-file", "-", stdin="\n")
    assert empty.returncode == 2 and "empty" in empty.stderr


def test_rights_are_given_listed_and_taken(broker):
    given = run(broker, "acl", "create", "User:carol", "read", "describe", "--topic", "orders-", "--prefixed")
    assert given.returncode == 0, given.stderr
    assert run(broker, "acl", "create", "User:carol", "read", "--group", "*").returncode == 0
    assert run(broker, "acl", "create", "User:eve", "all", "--cluster", "--deny").returncode == 0
    of_topic = shown(run(broker, "acl", "list", "--topic", "orders-eu", "--json"))
    assert {(one["name"], one["pattern"], one["operation"]) for one in of_topic} == {
        ("orders-", "prefixed", "read"),
        ("orders-", "prefixed", "describe"),
    }
    assert len(shown(run(broker, "acl", "list", "--principal", "User:carol", "--json"))) == 3
    taken = run(broker, "acl", "delete", "User:carol", "describe")
    assert "deleted 1 entry" in taken.stderr
    assert "deleted 2 entries" in run(broker, "acl", "delete", "User:carol").stderr
    rest = [
        one for one in shown(run(broker, "acl", "list", "--json")) if one["principal"] in ("User:carol", "User:eve")
    ]
    assert [(one["principal"], one["permission"], one["resource"]) for one in rest] == [("User:eve", "deny", "cluster")]


def test_a_principal_is_described_by_every_entry_that_decides(broker):
    for words in (
        ["User:dan", "read", "write", "--topic", "paid-", "--prefixed"],
        ["User:*", "alter-configs", "--topic", "*"],
        ["User:dan", "write", "--topic", "paid-eu", "--deny"],
        ["User:dan", "delete", "--topic", "paid-eu", "--host", "10.0.0.1"],
        ["User:erin", "all", "--topic", "paid-eu"],
    ):
        assert run(broker, "acl", "create", *words).returncode == 0
    found = shown(run(broker, "acl", "describe", "User:dan", "--topic", "paid-eu", "--json"))
    assert {one["principal"] for one in found["entries"]} == {"User:dan", "User:*"}
    assert len(found["entries"]) == 5
    assert found["may"] == ["read", "describe", "describe-configs", "alter-configs"], "a prefix, a deny, and *"
    there = shown(run(broker, "acl", "describe", "User:dan", "--topic", "paid-eu", "--host", "10.0.0.1", "--json"))
    assert "delete" in there["may"]
    nobody = run(broker, "acl", "describe", "User:fay", "--group", "g", "--json")
    assert shown(nobody)["may"] == []
    said = run(broker, "acl", "describe", "User:erin", "--topic", "paid-eu")
    assert "User:erin may: read, write, create" in said.stdout
    for one in ("User:dan", "User:erin", "User:*"):
        run(broker, "acl", "delete", one)


def test_altering_adds_what_is_missing_and_deletes_the_rest_of_it_alone(broker):
    about = ["--topic", "bills"]
    run(broker, "acl", "create", "User:gil", "read", "write", *about)
    run(broker, "acl", "create", "User:gil", "read", *about, "--prefixed")
    run(broker, "acl", "create", "User:gil", "delete", *about, "--deny")
    done = run(broker, "acl", "alter", "User:gil", "read", "describe", *about)
    assert (done.returncode, "no longer: write" in done.stderr) == (0, True), done.stderr
    rest = shown(run(broker, "acl", "list", "--principal", "User:gil", "--json"))
    assert {(one["pattern"], one["permission"], one["operation"]) for one in rest} == {
        ("literal", "allow", "read"),
        ("literal", "allow", "describe"),
        ("prefixed", "allow", "read"),
        ("literal", "deny", "delete"),
    }
    refused = run(broker, "acl", "alter", "User:gil", "idempotent-write", *about)
    assert refused.returncode == 1
    assert shown(run(broker, "acl", "list", "--principal", "User:gil", "--json")) == rest, "nothing was deleted"
    run(broker, "acl", "delete", "User:gil")


def test_what_makes_no_sense_is_refused_in_words(broker):
    both = run(broker, "acl", "create", "User:a", "read", "--topic", "t", "--group", "g")
    assert both.returncode == 2 and "give one of" in both.stderr
    unknown = run(broker, "acl", "create", "alice", "read", "--topic", "t")
    assert unknown.returncode == 1 and "principal" in unknown.stderr
    wrong = run(broker, "acl", "create", "User:a", "alter-configs", "--group", "g", "--prefixed")
    assert wrong.returncode == 0, "groups have configurations"
    impossible = run(broker, "acl", "create", "User:a", "write", "--group", "g")
    assert impossible.returncode == 1 and "only supports operations" in impossible.stderr


@pytest.mark.slow
def test_quotas_are_set_listed_changed_and_deleted(broker):
    entity = ["--user", "carol", "--default-client-id"]
    given = run(broker, "quota", "create", *entity, "--producer-byte-rate", "1000", "--request-percentage", "12.5")
    assert given.returncode == 0, given.stderr
    assert "user carol, client-id <default>: producer_byte_rate=1000, request_percentage=12.5" in given.stderr
    again = run(broker, "quota", "create", *entity, "--producer-byte-rate", "1")
    assert again.returncode == 1 and "has quotas already" in again.stderr
    alter = ["--remove", "producer_byte_rate", "--consumer-byte-rate", "7"]
    assert run(broker, "quota", "alter", *entity, *alter).returncode == 0
    expected = {
        "entity": {"client-id": None, "user": "carol"},
        "quotas": {"consumer_byte_rate": 7.0, "request_percentage": 12.5},
    }
    assert shown(run(broker, "quota", "describe", *entity, "--json")) == [expected]
    assert run(broker, "quota", "create", "--default-ip", "--connection-creation-rate", "1e6").returncode == 0
    assert expected in shown(run(broker, "quota", "list", "--json"))
    for one in (entity, ["--default-ip"]):
        assert run(broker, "quota", "delete", *one).returncode == 0
        gone = run(broker, "quota", "describe", *one)
        assert gone.returncode == 1 and "has no quotas" in gone.stderr
    assert shown(run(broker, "quota", "list", "--json")) == []


@pytest.mark.slow
def test_quotas_that_cannot_be_are_refused_in_words(broker):
    assert run(broker, "quota", "create", "--producer-byte-rate", "1").returncode == 2
    assert run(broker, "quota", "create", "--user", "a").returncode == 2
    both = run(broker, "quota", "create", "--user", "a", "--default-user", "--producer-byte-rate", "1")
    assert both.returncode == 2 and "one of --user and --default-user" in both.stderr
    wrong = run(broker, "quota", "create", "--user", "a", "--connection-creation-rate", "1")
    assert wrong.returncode == 1 and "Invalid configuration key connection_creation_rate" in wrong.stderr
    missing = run(broker, "quota", "alter", "--user", "a", "--producer-byte-rate", "1")
    assert missing.returncode == 1 and "has no quotas" in missing.stderr
