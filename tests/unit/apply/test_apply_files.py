"""A file to apply: each complaint has line, field and valid words; the plan is the difference and no more."""

import pytest

from millstream.apply import plan as steps
from millstream.apply.model import load
from millstream.apply.plan import Present, PresentSchema, PresentTopic, plan
from millstream.config.yaml_file import InvalidFile


@pytest.fixture
def write(tmp_path):
    (tmp_path / "word").write_text("hush-hush-31\n")
    (tmp_path / "empty").write_text("\nnot this\n")
    (tmp_path / "s.avsc").write_text('"string"')

    def writing(text):
        (tmp_path / "f.yaml").write_text(text)
        return str(tmp_path / "f.yaml")

    return writing


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("topic: {}", "1:1", "did you mean topics"),
        ("[]", "1:1", "topics, users, acls, quotas, schemas"),
        ("topics: {a: {partition: 3}}", "1:14", "did you mean partitions"),
        ("topics: {a: {partitions: 0}}", "1:26", "from 1 on"),
        ("topics: {a: {partitions: many}}", "1:26", "expected int"),
        ("topics:\n  a:\n    configs:\n      retention.m: 7d", "4:7", "did you mean retention.ms"),
        ("topics: {a: {configs: {retention.ms: soon}}}", "1:24", "retention.ms"),
        ("topics: {__x: {}}", "1:10", "internal"),
        ("topics: {a: {}, a: {}}", "1:17", "twice"),
        ("users: {u: {password_file: nowhere}}", "1:28", "no such file"),
        ("users: {u: {password_file: empty}}", "1:28", "first line"),
        ("users: {u: {password: secret-word}}", "1:13", "password_file"),
        ("users: {u: {password_file: word, mechanism: SCRAM-SHA-1}}", "1:45", "SCRAM-SHA-256, SCRAM-SHA-512"),
        ("acls: [{principal: alice, allow: [read], topic: a}]", "1:20", "User:alice"),
        (
            "acls: [{principal: 'User:a', allow: [raed], topic: a}]",
            "1:38",
            "did you mean read? known are all, read, write",
        ),
        ("acls: [{principal: 'User:a', allow: [read]}]", "1:8", "topic, group, transactional_id, cluster"),
        ("acls: [{principal: 'User:a', topic: a}]", "1:8", "allow or deny"),
        ("quotas: [{user: a}]", "1:10", "producer_byte_rate"),
        ("quotas: [{producer_byte_rate: 3}]", "1:10", "user, client_id, both, or ip"),
        ("quotas: [{user: a, producer_byte_rate: 0}]", "1:40", "above 0"),
        ("quotas: [{user: a, connection_creation_rate: 5}]", "1:46", "addresses"),
        ("schemas: {s: {file: s.xml}}", "1:21", "avro, json or protobuf"),
        ("schemas: {s: {file: s.avsc, compatibility: SOME}}", "1:44", "NONE, BACKWARD"),
    ],
)
def test_a_complaint_has_its_place_and_the_valid_words(write, text, place, words):
    name = write(text)
    with pytest.raises(InvalidFile) as caught:
        load(name)
    assert caught.value.problems[0].startswith(f"{name}:{place}: ")
    assert words in caught.value.problems[0]
    assert "secret-word" not in str(caught.value)


def test_all_complaints_come_at_once_in_the_order_of_the_file(write):
    with pytest.raises(InvalidFile) as caught:
        load(write("schemas: {s: {file: s.xml}}\ntopics: {a: {partitions: 0}}\nquotas: [{user: a}]\n"))
    assert [problem.split(":")[1] for problem in caught.value.problems] == ["1", "1", "2", "3"]


def test_the_plan_is_the_difference(write):
    loaded = load(
        write(
            "topics:\n  new: {}\n  same: {partitions: 2, configs: {retention.ms: 1d}}\n"
            "users: {u: {password_file: word}, v: {password_file: word}}\nschemas: {s: {file: s.avsc}}\n"
        )
    )
    present = Present(
        topics={"same": PresentTopic(2, 1, {"retention.ms": "86400000"}), "_schemas": PresentTopic(1, 1, {})},
        users={"u": ("SCRAM-SHA-512",), "old": ("SCRAM-SHA-256",), "me": ("SCRAM-SHA-512",)},
        schemas={"s": PresentSchema(True, "")},
    )
    found = plan(loaded, present, prune=False)
    assert [step.action for step in found.steps] == [
        steps.CreateTopic("new", -1, -1, {}),
        steps.SetUser("v", "SCRAM-SHA-512", "hush-hush-31"),
    ]
    assert "hush" not in repr(found)
    pruned = plan(loaded, present, prune=True, login="me").steps[2:]
    assert [step.action for step in pruned] == [steps.DeleteUser("old", ("SCRAM-SHA-256",))]


def test_what_is_removed_comes_after_what_is_made(write):
    loaded = load(write("topics: {new: {}}\nacls: [{principal: 'User:a', allow: [read], topic: new}]"))
    found = plan(loaded, Present(topics={"old": PresentTopic(1, 1, {})}), prune=True)
    assert [step.verb for step in found.steps] == ["create", "create", "delete"]
